"""Containers, files and vector stores in the document."""

from collections.abc import Mapping

from responses_app.openapi.operations import BYTES, FORM, IS_THERE, JSON, PAGED, Operation


def _of_containers(id: str, summary: str, answer: str, **more: object) -> Operation:
    return Operation(id=id, summary=summary, tag="Containers", answers={JSON: answer}, **more)  # type: ignore[arg-type]


def _of_files(id: str, summary: str, answer: str, **more: object) -> Operation:
    return Operation(id=id, summary=summary, tag="Files", answers={JSON: answer}, **more)  # type: ignore[arg-type]


def _of_stores(id: str, summary: str, answer: str, **more: object) -> Operation:
    return Operation(id=id, summary=summary, tag="Vector stores", answers={JSON: answer}, **more)  # type: ignore[arg-type]


FILE_OPERATIONS: Mapping[str, Mapping[str, Operation]] = {
    "/v1/containers": {
        "GET": _of_containers("ListContainers", "List the containers", "ContainerList", takes=PAGED),
        "POST": _of_containers(
            "CreateContainer", "Create a container", "Container", body="NewContainer", errors=(404, 429)
        ),
    },
    "/v1/containers/{container_id}": {
        "GET": _of_containers("RetrieveContainer", "Return a container", "Container", errors=IS_THERE),
        "DELETE": _of_containers("DeleteContainer", "End a container", "DeletedContainer", errors=IS_THERE),
    },
    "/v1/containers/{container_id}/files": {
        "GET": _of_containers(
            "ListContainerFiles", "List a container's files", "ContainerFileList", takes=PAGED, errors=(404, 429)
        ),
        "POST": _of_containers(
            "CreateContainerFile",
            "Upload a file to a container, or copy one of the Files API there",
            "ContainerFile",
            body="Upload",
            body_type=FORM,
            json="CopiedFile",
            errors=(404, 429),
        ),
    },
    "/v1/containers/{container_id}/files/{file_id}": {
        "GET": _of_containers("RetrieveContainerFile", "Return a file", "ContainerFile", errors=(404, 429)),
        "DELETE": _of_containers("DeleteContainerFile", "Remove a file", "DeletedContainer", errors=(404, 429)),
    },
    "/v1/containers/{container_id}/files/{file_id}/content": {
        "GET": Operation(
            id="RetrieveContainerFileContent",
            summary="Return what is in a file",
            tag="Containers",
            answers={BYTES: ""},
            errors=(404, 429),
        ),
    },
    "/v1/files": {
        "GET": _of_files(
            "listFiles", "List the files", "UploadedFileList", takes=("purpose", "limit of files", "order", "after")
        ),
        "POST": _of_files("createFile", "Upload a file", "UploadedFile", body="NewFile", body_type=FORM),
    },
    "/v1/files/{file_id}": {
        "GET": _of_files("retrieveFile", "Return what is known of a file", "UploadedFile", errors=IS_THERE),
        "DELETE": _of_files("deleteFile", "Delete a file", "DeletedFile", errors=IS_THERE),
    },
    "/v1/files/{file_id}/content": {
        "GET": Operation(
            id="downloadFile", summary="Return what is in a file", tag="Files", answers={BYTES: ""}, errors=IS_THERE
        ),
    },
    "/v1/uploads": {
        "POST": _of_files("createUpload", "Begin a file that comes in parts", "PartUpload", body="NewUpload"),
    },
    "/v1/uploads/{upload_id}/parts": {
        "POST": _of_files("addUploadPart", "Add a part", "UploadPart", body="NewPart", body_type=FORM, errors=IS_THERE),
    },
    "/v1/uploads/{upload_id}/complete": {
        "POST": _of_files(
            "completeUpload", "Make a file of the parts", "PartUpload", body="CompletedUpload", errors=IS_THERE
        ),
    },
    "/v1/uploads/{upload_id}/cancel": {
        "POST": _of_files("cancelUpload", "Give an upload up", "PartUpload", errors=IS_THERE),
    },
    "/v1/vector_stores": {
        "GET": _of_stores("listVectorStores", "List the vector stores", "VectorStoreList", takes=PAGED),
        "POST": _of_stores(
            "createVectorStore", "Create a vector store", "VectorStore", body="NewVectorStore", errors=(404, 429)
        ),
    },
    "/v1/vector_stores/{vector_store_id}": {
        "GET": _of_stores("getVectorStore", "Return a vector store", "VectorStore", errors=IS_THERE),
        "POST": _of_stores(
            "modifyVectorStore", "Change a vector store", "VectorStore", body="VectorStoreChanges", errors=IS_THERE
        ),
        "DELETE": _of_stores("deleteVectorStore", "Delete a vector store", "DeletedVectorStore", errors=IS_THERE),
    },
    "/v1/vector_stores/{vector_store_id}/search": {
        "POST": _of_stores(
            "searchVectorStore",
            "Search a vector store",
            "VectorStoreResults",
            body="VectorStoreSearch",
            errors=IS_THERE,
        ),
    },
    "/v1/vector_stores/{vector_store_id}/files": {
        "GET": _of_stores(
            "listVectorStoreFiles",
            "List the files of a store",
            "VectorStoreFileList",
            takes=("filter", *PAGED),
            errors=IS_THERE,
        ),
        "POST": _of_stores(
            "createVectorStoreFile",
            "Put a file into a store",
            "VectorStoreFile",
            body="NewVectorStoreFile",
            errors=(404, 429),
        ),
    },
    "/v1/vector_stores/{vector_store_id}/files/{file_id}": {
        "GET": _of_stores("getVectorStoreFile", "Return a file of a store", "VectorStoreFile", errors=IS_THERE),
        "POST": _of_stores(
            "updateVectorStoreFileAttributes",
            "Change the attributes of a file",
            "VectorStoreFile",
            body="VectorStoreFileChanges",
            errors=IS_THERE,
        ),
        "DELETE": _of_stores(
            "deleteVectorStoreFile", "Take a file out of a store", "DeletedVectorStore", errors=IS_THERE
        ),
    },
    "/v1/vector_stores/{vector_store_id}/files/{file_id}/content": {
        "GET": _of_stores(
            "retrieveVectorStoreFileContent",
            "Return the text of a file, as it is searched",
            "VectorStoreContent",
            errors=IS_THERE,
        ),
    },
    "/v1/vector_stores/{vector_store_id}/file_batches": {
        "POST": _of_stores(
            "createVectorStoreFileBatch",
            "Put several files into a store",
            "VectorStoreBatch",
            body="NewVectorStoreBatch",
            errors=(404, 429),
        ),
    },
    "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}": {
        "GET": _of_stores("getVectorStoreFileBatch", "Return a batch", "VectorStoreBatch", errors=IS_THERE),
    },
    "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/cancel": {
        "POST": _of_stores(
            "cancelVectorStoreFileBatch", "Leave out what was not read yet", "VectorStoreBatch", errors=IS_THERE
        ),
    },
    "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/files": {
        "GET": _of_stores(
            "listFilesInVectorStoreBatch",
            "List the files of a batch",
            "VectorStoreFileList",
            takes=("filter", *PAGED),
            errors=IS_THERE,
        ),
    },
}

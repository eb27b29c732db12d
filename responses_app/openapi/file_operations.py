"""Containers, files and vector stores in the document."""

from collections.abc import Mapping

from responses_app.api.parameters import AFTER, ORDER, PAGED, Parameter, limit_of, text
from responses_app.openapi.operations import BYTES, FORM, IS_THERE, JSON, Operation
from responses_app.protocol.files import MAX_LISTED, PURPOSES


def _of_containers(id: str, summary: str, answer: str, **more: object) -> Operation:
    return Operation(id=id, summary=summary, tag="Containers", answers={JSON: answer}, **more)  # type: ignore[arg-type]


def _of_files(id: str, summary: str, answer: str, **more: object) -> Operation:
    return Operation(id=id, summary=summary, tag="Files", answers={JSON: answer}, **more)  # type: ignore[arg-type]


_LISTED = (
    Parameter("purpose", "Only files that are for this.", text(enum=list(PURPOSES))),
    limit_of("files", maximum=MAX_LISTED, default=MAX_LISTED),
    *(ORDER, AFTER),
)

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
        "GET": _of_files("listFiles", "List the files", "UploadedFileList", takes=_LISTED),
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
}

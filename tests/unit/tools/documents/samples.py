"""Small files of all kinds that are read, and such as do harm."""

import io
import zipfile

import docx


def docx_file(*paragraphs: str, rows: tuple[tuple[str, ...], ...] = ()) -> bytes:
    document = docx.Document()
    for text in paragraphs:
        document.add_paragraph(text)
    if rows:
        table = document.add_table(len(rows), len(rows[0]))
        for row, texts in zip(table.rows, rows, strict=True):
            for cell, text in zip(row.cells, texts, strict=True):
                cell.text = text
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def changed_docx(text: bytes, **more: bytes) -> bytes:
    """Return a DOCX file with another text in it, and more parts."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(docx_file("x"))) as before, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for part in before.infolist():
            new.writestr(part.filename, text if part.filename == "word/document.xml" else before.read(part))
        for name, content in more.items():
            new.writestr(name, content)
    return file.getvalue()


def pdf_file(text: str, *, kids: str = "[3 0 R]") -> bytes:
    """Return a PDF of one page; `kids` are the pages of its tree."""
    stream = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids {kids} /Count 1 >>".encode(),
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        b" /Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream),
    ]
    file, places = bytearray(b"%PDF-1.4\n"), []
    for number, content in enumerate(objects, 1):
        places.append(len(file))
        file += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    start = len(file)
    file += b"xref\n0 5\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % place for place in places)
    file += b"trailer\n<< /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % start
    return bytes(file)


ENTITIES = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 20}">' for n in range(1, 12))
ENTITY_BOMB = (
    f'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY e0 "boom">{ENTITIES}]>'
    '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
    "<w:body><w:p><w:r><w:t>&e11;</w:t></w:r></w:p></w:body></w:document>"
).encode()

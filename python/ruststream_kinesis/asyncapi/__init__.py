"""The AsyncAPI 3.0 document of an application, made from its declarations alone.

`schemas.py` turns types into schemas, `messages.py` types into messages, `document.py` puts the
document together, `page.py` shows one as HTML, `writing.py` as text. Nothing else of the package
imports this one: it is loaded when a document is asked for.
"""

from ruststream_kinesis.asyncapi.document import document
from ruststream_kinesis.asyncapi.page import page
from ruststream_kinesis.asyncapi.writing import to_json, to_yaml

__all__ = ["document", "page", "to_json", "to_yaml"]

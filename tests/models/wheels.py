"""A small package with a model in it, made by hand, for pip to find in a folder."""

import base64
import hashlib
import zipfile
from dataclasses import replace

from tidegate.models.catalogue import DEMO


def build(folder, model_bytes, *, member="tiny_demo/tiny-Q8_0.gguf", version="1.0"):
    """Write the wheel to `folder`; the demo model of the catalogue, changed to be this one."""
    name = f"tiny_demo-{version}-py3-none-any.whl"
    info = f"tiny_demo-{version}.dist-info"
    files = {
        member: model_bytes,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny-demo\nVersion: {version}\nRequires-Dist: no-such-thing\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for path, data in files.items()
    )
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    wheel = replace(
        DEMO.wheel,
        requirement=f"tiny-demo=={version}",
        file_name=name,
        sha256=hashlib.sha256((folder / name).read_bytes()).hexdigest(),
        size_bytes=(folder / name).stat().st_size,
        member=member,
        member_sha256=hashlib.sha256(model_bytes).hexdigest(),
        member_bytes=len(model_bytes),
        quantisation="Q8_0",
    )
    return replace(DEMO, wheel=wheel)

"""Gives a wheel a version that says which TensorFlow it is for: 0.1.0+tf2.21.

    name_wheel.py WHEEL FOLDER

writes the new wheel into FOLDER and prints its path. What follows the + is a local
version as PEP 440 has it: pip shows it, takes the wheel for 0.1.0 where that is asked
for, and can be asked for this very one. The TensorFlow is the one that the build
recorded in the wheel.
"""

import ast
import base64
import hashlib
import pathlib
import sys
import zipfile

_BUILD_INFO = "tf_syncrep/_build_info.py"


def main(wheel: str, folder: str) -> None:
    """Writes the wheel with its new name, and prints the path."""
    path = pathlib.Path(wheel)
    distribution, version, tags = path.stem.split("-", 2)
    with zipfile.ZipFile(path) as archive:
        files = [(info, archive.read(info)) for info in archive.infolist()]
    (built,) = (content for info, content in files if info.filename == _BUILD_INFO)
    new_version = f"{version}+tf{_minor_version(built.decode())}"
    old_info, new_info = (
        f"{distribution}-{v}.dist-info" for v in (version, new_version)
    )

    new_path = pathlib.Path(folder) / f"{distribution}-{new_version}-{tags}.whl"
    new_path.parent.mkdir(parents=True, exist_ok=True)
    record_name = f"{new_info}/RECORD"
    record = ""
    with zipfile.ZipFile(new_path, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, content in files:
            if info.filename.startswith(f"{old_info}/"):
                info.filename = new_info + info.filename[len(old_info) :]
            if info.is_dir() or info.filename == record_name:
                continue
            if info.filename == f"{new_info}/METADATA":
                line = b"\nVersion: %s\n"
                old_line, new_line = (
                    line % version.encode(),
                    line % new_version.encode(),
                )
                if old_line not in content:
                    raise ValueError(
                        f"{path}: METADATA has no line 'Version: {version}'"
                    )
                content = content.replace(old_line, new_line, 1)
            archive.writestr(info, content)
            record += f"{info.filename},{_hash(content)},{len(content)}\n"
        archive.writestr(record_name, f"{record}{record_name},,\n")
    print(new_path)


def _minor_version(build_info: str) -> str:
    """Returns the minor version in the text of a _build_info.py."""
    values = {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in ast.parse(build_info).body
        if isinstance(statement, ast.Assign)
    }
    return ".".join(values["TF_VERSION"].split(".")[:2])


def _hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.decode().rstrip('=')}"


if __name__ == "__main__":
    main(*sys.argv[1:])

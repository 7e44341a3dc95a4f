"""Certificates of authorities made for a test, by the program openssl."""

import os
import pathlib
import subprocess

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def make(
    folder: str | os.PathLike[str], owner: str
) -> tuple[pathlib.Path, pathlib.Path, pathlib.Path]:
    """Makes an authority, and one certificate that it vouches for."""
    folder = pathlib.Path(folder)
    certificate, key = folder / f"{owner}.pem", folder / f"{owner}.key"
    authority, authority_key = folder / f"{owner}-ca.pem", folder / f"{owner}-ca.key"
    request = folder / f"{owner}.csr"
    _openssl(
        *("req", "-x509", *_KEY, "-keyout", authority_key, "-out", authority),
        *("-subj", f"/CN={owner}-ca"),
    )
    _openssl("req", *_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={owner}")
    _openssl(
        *("x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key),
        *("-CAcreateserial", "-out", certificate),
    )
    return certificate, key, authority


def _openssl(*args: object) -> None:
    command = ["openssl", *map(str, args)]
    subprocess.run(command, check=True, capture_output=True, text=True)

"""The files of `--tls`: a certificate, its key, and the authority that others need."""

import contextlib
import dataclasses
import os
import ssl

from tf_syncrep.python.distribute.errors import UsageError

_FILES = ("CERT", "KEY", "CA")


@dataclasses.dataclass(frozen=True)
class Credentials:
    """Paths of files in PEM format.

    `certificate`: this task's certificate, followed by those between it and
    `authority`, if there are any.
    """

    certificate: str
    key: str
    authority: str

    @classmethod
    def parse(cls, text: str) -> "Credentials":
        """Parses a value of `--tls`, and checks that the files fit together."""
        paths = [os.path.abspath(path) if path else "" for path in text.split(",")]
        if len(paths) != len(_FILES) or not all(paths):
            raise UsageError(
                f"--tls must be three files, {','.join(_FILES)}. Received: {text!r}"
            )
        for name, path in zip(_FILES, paths, strict=True):
            if not path.isprintable():
                raise UsageError(
                    f"--tls: {name} has a strange name. Received: {path!r}"
                )
            try:
                with open(path, "rb"):
                    pass
            except OSError as error:
                raise UsageError(
                    f"--tls: {name} cannot be read ({error.strerror}). Received: "
                    f"{path!r}"
                ) from None
        credentials = cls(*paths)
        credentials._check()
        return credentials

    def _check(self) -> None:
        """Checks the files: connects two tasks that both have them."""
        ends = []
        for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
            context = ssl.SSLContext(side)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                # With an empty password the key is not asked for on the terminal.
                context.load_cert_chain(self.certificate, self.key, password="")
            except ssl.SSLError as error:
                raise UsageError(
                    "--tls: KEY is not the key, without a password, of the certificate "
                    f"in CERT ({_reason(error)}). Received: {self.certificate!r}, "
                    f"{self.key!r}"
                ) from None
            try:
                context.load_verify_locations(self.authority)
            except ssl.SSLError as error:
                raise UsageError(
                    f"--tls: CA has no certificate ({_reason(error)}). Received: "
                    f"{self.authority!r}"
                ) from None
            ends.append(context)
        try:
            _shake_hands(*ends)
        except ssl.SSLError as error:
            raise UsageError(
                f"--tls: CA does not vouch for CERT ({_reason(error)}). Received: "
                f"{self.certificate!r}, {self.authority!r}"
            ) from None


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    # Each end answers the other's messages; there are fewer messages than turns.
    for _ in range(4):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()


def _reason(error: ssl.SSLError) -> str:
    message = getattr(error, "verify_message", None)
    return message or (error.reason or str(error)).lower().replace("_", " ")

"""The files of `--tls`: a certificate, its key, and who vouches for the others'."""

import contextlib
import dataclasses
import os
import ssl

_FILES = ("CERT", "KEY", "CA")


class TlsError(ValueError):
    """What `--tls` says is malformed, or tunnels cannot be had on this machine."""


@dataclasses.dataclass(frozen=True)
class Credentials:
    """Paths of files in PEM format.

    Attributes:
        certificate: this task's certificate, followed by those between it and
          `authority`, if there are any.
        key: its private key, not encrypted.
        authority: the certificate of the authority, or several: whoever has a
          certificate that it signed is let in, and is believed to be any task.
    """

    certificate: str
    key: str
    authority: str

    @classmethod
    def parse(cls, text: str) -> "Credentials":
        """Reads a value of `--tls`, and checks that the files belong together.

        Args:
            text: "CERT,KEY,CA", three paths.

        Raises:
            TlsError: there are not three, one cannot be read, or the authority does not
              vouch for the certificate at the present time.
        """
        paths = [os.path.abspath(path) if path else "" for path in text.split(",")]
        if len(paths) != len(_FILES) or not all(paths):
            raise TlsError(
                f"--tls must be three files, {','.join(_FILES)}. Received: {text!r}"
            )
        for name, path in zip(_FILES, paths, strict=True):
            if not path.isprintable():
                raise TlsError(f"--tls: {name} has a strange name. Received: {path!r}")
            try:
                with open(path, "rb"):
                    pass
            except OSError as error:
                raise TlsError(
                    f"--tls: {name} cannot be read ({error.strerror}). Received: "
                    f"{path!r}"
                ) from None
        credentials = cls(*paths)
        credentials._check()
        return credentials

    def _check(self) -> None:
        """Lets a task with these files talk to another one with the same."""
        ends = []
        for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
            context = ssl.SSLContext(side)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                # Without a password: one that is asked for would be waited for.
                context.load_cert_chain(self.certificate, self.key, password="")
            except ssl.SSLError as error:
                raise TlsError(
                    "--tls: KEY is not the key, without a password, of the certificate "
                    f"in CERT ({_reason(error)}). Received: {self.certificate!r}, "
                    f"{self.key!r}"
                ) from None
            try:
                context.load_verify_locations(self.authority)
            except ssl.SSLError as error:
                raise TlsError(
                    f"--tls: CA has no certificate ({_reason(error)}). Received: "
                    f"{self.authority!r}"
                ) from None
            ends.append(context)
        try:
            _shake_hands(*ends)
        except ssl.SSLError as error:
            raise TlsError(
                f"--tls: CA does not vouch for CERT ({_reason(error)}). Received: "
                f"{self.certificate!r}, {self.authority!r}"
            ) from None


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    # Each end answers what the other one has sent; more turns than there are messages.
    for _ in range(4):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()


def _reason(error: ssl.SSLError) -> str:
    message = getattr(error, "verify_message", None)
    return message or (error.reason or str(error)).lower().replace("_", " ")

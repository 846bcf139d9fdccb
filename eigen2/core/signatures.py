"""Signatures of SSH keys, made and verified by OpenSSH's own program (`ssh-keygen -Y`, OpenSSH 8.2 or newer)."""

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from eigen2.errors import UserError, one_line
from eigen2.files import Folder

NAMESPACE = "eigen2-champion"  # a signature counts for what has this name only
PROGRAM = "ssh-keygen"


def sign(content: bytes, key: Path) -> bytes:
    """Return the signature of some bytes by a private key, or by a public one whose private key ssh-agent holds.

    Raises:
        UserError: the key cannot sign, or there is no OpenSSH.
    """
    done = _run("sign", "-n", NAMESPACE, "-f", str(key), content=content)
    if done.returncode or not done.stdout:
        raise UserError(f"the key {key} cannot sign ({_reason(done)}); give an SSH key, such as ~/.ssh/id_ed25519")
    return done.stdout


def verify(content: bytes, signature: Path, signers: Path) -> str:
    """Return who signed some bytes: the first name, of those in the file `signers`, whose key made the signature.

    A line of `signers` is a name and a public key: `alice@example.com ssh-ed25519 AAAA...` (ALLOWED SIGNERS in
    `man ssh-keygen`).

    Raises:
        UserError: there is no signature, or none of the signers made it, or there is no OpenSSH.
    """
    for file, what in ((signature, "it was not exported with --sign"), (signers, "give a file of allowed signers")):
        if not file.is_file():
            raise UserError(f"there is no file {file}: {what}")
    with TemporaryDirectory() as folder:
        copied = Path(folder, "signature")  # the same bytes for both calls
        Folder(folder).write(copied.name, signature.read_bytes())
        options = ("-f", str(signers), "-s", str(copied))
        found = _run("find-principals", *options)
        names = found.stdout.decode(errors="replace").splitlines()
        if found.returncode or not names:
            raise UserError(f"{signature} is by none of the signers in {signers}; do not trust what it signs")
        done = _run("verify", *options, "-n", NAMESPACE, "-I", names[0], content=content)
        if done.returncode:
            raise UserError(
                f"{signature} by {names[0]} is not valid ({_reason(done)}): the champion was changed since, or "
                f"{signers} restricts the key to other namespaces than {NAMESPACE}"
            )
    return names[0]


def _run(action: str, *options: str, content: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run([PROGRAM, "-Y", action, *options], input=content, capture_output=True, check=False)
    except OSError as error:
        raise UserError(f"signatures need {PROGRAM} of OpenSSH ({error.strerror or error}); install it") from error


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    return one_line(done.stderr.decode(errors="replace")) or "no signature came"

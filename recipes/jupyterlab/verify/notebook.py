# /// job
# id: jupyterlab.notebook
# title: a JupyterLab of its own on each rank, whose kernel answers a cell, and which ends cleanly
# expect:
#   without_token: 403
#   lab_page: 200
#   answer: (r + 1)*(r + 2)*(2*r + 3)//6
#   kernels_left: 0
#   exit_code: 0
# hint: the server, its kernel or their connections over the loopback fail; the output shows the server's log
# controls:
#   a server that is open to everybody: [without_token]
#   another cell: [answer]
#   a kernel that stays: [kernels_left]
#   a server that is killed: [exit_code]
# ///
"""A JupyterLab starts on the loopback, its kernel answers a cell, and it ends cleanly.

Each rank has a server, a port, a token and directories of its own.
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid

import envbuild_job
import websocket

TOKEN = secrets.token_hex(32)
# The loopback is not reached through a site's proxy.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def serve(directory: str) -> "tuple[int, subprocess.Popen[bytes]]":
    """Start a server whose every file is below a directory; return its port and process."""
    holder = envbuild_job.port_holder("127.0.0.1")
    port = holder.getsockname()[1]
    places = ("HOME", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")
    # Not on the command line, which every user of a host can read.
    env = {**os.environ, **dict.fromkeys(places, directory), "JUPYTER_TOKEN": TOKEN}
    words = [
        # control a server that is open to everybody: "--IdentityProvider.token=",
        # control a server that is open to everybody: "--ServerApp.disable_check_xsrf=True",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={directory}",
    ]
    process = subprocess.Popen([sys.executable, "-s", "-m", "jupyterlab", *words], env=env)
    while status(port, "/api") != 200 and process.poll() is None:
        time.sleep(0.1)
    holder.close()
    return port, process


def request(port: int, path: str, method: str = "GET", token: str = TOKEN) -> "tuple[int, bytes]":
    """Return status and body of the server's answer; status 0 without an answer."""
    headers = {"Authorization": f"token {token}"} if token else {}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method, headers=headers)
    try:
        with DIRECT.open(asked, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""
    except OSError:
        return 0, b""


def status(port: int, path: str, method: str = "GET", token: str = TOKEN) -> int:
    """Return the status of the server's answer."""
    return request(port, path, method, token)[0]


def run_cell(port: int, kernel: str, code: str) -> str:
    """Run code in a kernel and return the text of its result."""
    header = {"msg_id": uuid.uuid4().hex, "session": uuid.uuid4().hex, "username": "", "version": "5.4"}
    message = {
        "header": {**header, "msg_type": "execute_request"},
        "parent_header": {},
        "metadata": {},
        "content": {"code": code, "silent": False, "store_history": False, "allow_stdin": False},
        "channel": "shell",
    }
    address = f"ws://127.0.0.1:{port}/api/kernels/{kernel}/channels"
    connection = websocket.create_connection(address, timeout=60, header=[f"Authorization: token {TOKEN}"])
    connection.send(json.dumps(message))
    try:
        while True:
            answer = json.loads(connection.recv())
            if answer["parent_header"].get("msg_id") != header["msg_id"]:
                continue
            if answer["msg_type"] == "execute_result":
                return answer["content"]["data"]["text/plain"]
            if answer["msg_type"] == "error":
                raise RuntimeError("\n".join(answer["content"]["traceback"]))
    finally:
        connection.close()


def visit(port: int, rank: int) -> "dict[str, int]":
    """Run a cell in a kernel of the server, end both, and return the values to report."""
    record = {"without_token": status(port, "/api/kernels", token=""), "lab_page": status(port, "/lab")}
    kernel = json.loads(request(port, "/api/kernels", "POST")[1])["id"]
    # control another cell: cell = f"sum(k * k for k in range({rank} + 1))"
    cell = f"sum(k * k for k in range({rank} + 2))"
    record["answer"] = int(run_cell(port, kernel, cell))
    # control a kernel that stays: pass
    status(port, f"/api/kernels/{kernel}", "DELETE")
    record["kernels_left"] = len(json.loads(request(port, "/api/kernels")[1]))
    # control a server that is killed: pass
    status(port, "/api/shutdown", "POST")
    return record


def main() -> None:
    """Start a server, visit it, and report."""
    rank, size = envbuild_job.launched()
    with tempfile.TemporaryDirectory() as directory:
        port, process = serve(directory)
        try:
            record = visit(port, rank)
            # control a server that is killed: process.kill()
            # control a server that is killed: exit_code = process.wait(60)
            exit_code = process.wait(60)
        finally:
            process.kill()
    envbuild_job.report(rank=rank, size=size, exit_code=exit_code, **record)


if __name__ == "__main__":
    main()

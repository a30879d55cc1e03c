"""As a notebook's first cell: a kernel starts, computes and answers."""

from jupyter_client.manager import run_kernel

with run_kernel() as kernel:
    reply = kernel.execute_interactive("print(6 * 7)", timeout=60)
print(reply["content"]["status"])
raise SystemExit(reply["content"]["status"] != "ok")

# Puts script into exceptions, names of functions and files, and comments: </pre><script>document.title=1</script>
# marks: 0
# feedback: an exception at phase1_data_parallel/pass_around.py, line 14
# never: <script>document.title
__all__ = ["pass_around"]

SCRIPT = "<script>document.title = 'taken over'</script>"
Shown = type(SCRIPT, (ValueError,), {})


def pass_around(tensor):
    print(SCRIPT, f"</pre></div>{SCRIPT}<img src=x onerror=alert(1)>")
    raise Shown(f"</pre></td>{SCRIPT}")

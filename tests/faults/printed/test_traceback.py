"""Exceptions in printed lines: whole, cut, wrapped, interleaved."""

import pytest

from rayguard.faults.printed.line import peel
from rayguard.faults.printed.traceback import TracebackReader, exceptions_in

CHAIN = """\
Traceback (most recent call last):
  File "/app/a.py", line 3, in load
    return table[key]
           ~~~~~^^^^^
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/app/a.py", line 9, in <module>
    load("x")
  File "/app/a.py", line 5, in load
    raise LookupError(f"no {key}") from error
LookupError: no x
"""


def _read(text):
    reader = TracebackReader()
    found = [reader.feed(peel(raw, number))[1] for number, raw in enumerate(text.splitlines(), start=1)]
    return [one for one in (*found, reader.end()) if one is not None]


def test_a_chain_is_read_from_the_root():
    """With frames, their source lines, and where each stands."""
    root, last = _read(CHAIN)
    assert (root.type_name, root.message, root.line.number) == ("KeyError", "'x'", 5)
    assert [(frame.line, frame.code) for frame in root.frames] == [(3, "return table[key]")]
    assert (last.type_name, last.message, last.line.number) == ("LookupError", "no x", 14)
    assert [frame.function for frame in last.frames] == ["<module>", "load"]


def test_a_ray_error_carries_the_real_one():
    """The frames of the driver are dropped; the task's own exception counts."""
    (one,) = _read("""\
Traceback (most recent call last):
  File "/app/main.py", line 97, in <module>
    main()
ray.exceptions.RayTaskError(AssertionError): ray::main_task() (pid=20133, ip=10.0.0.2)
  File "/app/protocol.py", line 506, in chunk
AssertionError: only support equal chunk.
""")
    assert (one.type_name, one.message) == ("AssertionError", "only support equal chunk.")
    names = {"ray.exceptions.RayTaskError", "RayTaskError(AssertionError)", "AssertionError"}
    assert set(one.wrapped) == names
    assert [frame.function for frame in one.frames] == ["chunk"]


@pytest.mark.parametrize(
    ("text", "type_name", "message"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.", "torch.OutOfMemoryError", "CUDA out of memory."),
        ('  File "/a.py", line 3, in f\n    assert x > 0', "AssertionError", ""),
        ('  File "/a.py", line 3, in f\n    raise ValueError("no")', "ValueError", "no"),
        ('  File "/a.py", line 3, in f\n    g()\nmy_errors.Broken: bad', "my_errors.Broken", "bad"),
        ("AssertionError", "AssertionError", ""),
    ],
)
def test_a_cut_traceback_is_still_an_exception(text, type_name, message):
    """Without its head, its last line, or all of its frames."""
    (one,) = _read(text)
    assert (one.type_name, one.message) == (type_name, message)


def test_a_message_goes_on_over_lines_until_something_else_begins():
    """Pydantic and torch write several."""
    one, other = _read("""\
pydantic_core.ValidationError: 1 validation error for EngineArgs
  Value error, max_model_len is too long [type=value_error]
Traceback (most recent call last):
  File "/a.py", line 1, in f
KeyError: 1
""")
    assert one.message.splitlines()[1] == "Value error, max_model_len is too long [type=value_error]"
    assert other.type_name == "KeyError"


def test_a_few_foreign_lines_do_not_break_a_traceback():
    """A thread of the same process may print between its lines."""
    (one,) = _read("""\
Traceback (most recent call last):
  File "/a.py", line 1, in f
    g()
step 12 done
  File "/a.py", line 2, in g
    h()
KeyError: 1
""")
    assert [frame.line for frame in one.frames] == [1, 2]


@pytest.mark.parametrize(
    "text", ["all is well", "  File not found", "Traceback of packets", "warning: slow", ""]
)
def test_ordinary_lines_are_no_exception(text):
    """Words alone do not make one."""
    assert _read(text) == []


def test_the_text_of_a_wrapper_gives_the_chain_in_it():
    """Ray's message holds what the exception itself lost on its way."""
    assert [one.type_name for one in exceptions_in("ray::f()\n" + CHAIN)] == ["KeyError", "LookupError"]
    assert exceptions_in("nothing in it") == ()


def test_what_python_ignored_is_ignored():
    """A destructor that fails at exit is no failure of the job."""
    (one,) = _read("""\
Exception ignored in: <function LLM.__del__ at 0x7f>
Traceback (most recent call last):
  File "/a.py", line 1, in __del__
    self.close()
AttributeError: 'NoneType' object has no attribute 'close'
Traceback (most recent call last):
  File "/a.py", line 9, in main
    run()
KeyError: 1
""")
    assert one.type_name == "KeyError"


def test_a_box_round_a_traceback_is_taken_off():
    """As rich and typer draw it."""
    (one,) = _read("""\
╭───────────── Traceback (most recent call last) ─────────────╮
│ /app/a.py:12 in main                                         │
│                                                              │
│   11 │   x = 1                                               │
│ ❱ 12 │   assert x == 2                                       │
│   13 │                                                       │
╰──────────────────────────────────────────────────────────────╯
AssertionError
""")
    (frame,) = one.frames
    assert (one.type_name, str(frame), frame.code) == (
        "AssertionError",
        "/app/a.py:12 in main",
        "assert x == 2",
    )


@pytest.mark.parametrize(
    "text",
    [
        "File ~/app/a.py:530, in Core.step(self, x)\n    528 y = 1\n--> 530 assert x == 2\n\nAssertionError:",
        "~/app/a.py in step(self, x)\n    528 y = 1\n--> 530 assert x == 2\n\nAssertionError:",
    ],
)
def test_a_notebooks_traceback_is_read(text):
    """Of IPython 8, and of those before."""
    (one,) = _read(text)
    assert one.type_name == "AssertionError"
    (frame,) = one.frames
    assert (frame.file, frame.line, frame.code) == ("~/app/a.py", 530, "assert x == 2")


@pytest.mark.parametrize(
    ("last", "type_name"),
    [
        ("type object 'TokenizerInfo' has no attribute 'from_huggingface'", "AttributeError"),
        ("'NoneType' object has no attribute 'shape'", "AttributeError"),
        ("list index out of range", "IndexError"),
        ("No module named 'flash_attn'", "ModuleNotFoundError"),
        ("f() got an unexpected keyword argument 'x'", "TypeError"),
        ("[Errno 24] Too many open files", "OSError"),
        ("warmup_steps must be either 0 or > 1", ""),
    ],
)
def test_a_message_without_its_type_is_read(last, type_name):
    """Where only one type says so, it is that type."""
    (one,) = _read(f'  File "/app/a.py", line 3, in f\n    g(x)\n{last}')
    assert (one.type_name, one.message) == (type_name, last)


def test_a_log_line_after_cut_frames_is_no_message():
    """It was printed by somebody else."""
    (one,) = _read('  File "/app/a.py", line 3, in f\n    g(x)\nINFO 05-11 14:20:55 [core.py:3] going on')
    assert (one.type_name, one.message) == ("", "")


def test_a_variable_that_is_raised_names_no_type():
    """`raise value` says nothing of its class."""
    assert _read('  File "/app/a.py", line 3, in f\n    raise value')[0].type_name == ""
    assert _read('  File "/app/a.py", line 3, in f\n    raise queue.Full("x")')[0].type_name == "queue.Full"


def test_two_ranks_that_write_at_once_are_one_exception():
    """Their words stand twice."""
    (one,) = _read("KeyErrorKeyError: : 'input_ids'")
    assert (one.type_name, one.message) == ("KeyError", "'input_ids'")


def test_a_name_that_was_cut_off_names_no_type():
    """The text ends within the class; a called one, or a whole name, is believed."""
    frames = '  File "/app/a.py", line 3, in f\n    raise '
    assert _read(f"{frames}AsyncEng")[0].type_name == ""
    assert _read(f"{frames}EngineDeadError")[0].type_name == "EngineDeadError"
    assert _read(f"{frames}Rare('x')")[0].type_name == "Rare"
    assert _read(f"{frames}Rare from error")[0].type_name == "Rare"


def test_a_module_whose_frame_was_cut_off_is_a_module():
    """The text ends within the frame."""
    assert _read('  File "/app/a.py", line 3, in <mod')[0].frames[-1].function == "<module>"
    assert _read('  File "/app/a.py", line 3, in <lam')[0].frames[-1].function == "<lam"


def test_a_notebook_names_the_type_in_front():
    """Its last line may be missing; Colab writes a file's name as a link."""
    (one,) = _read("""\
RuntimeError                              Traceback (most recent call last)
[/lib/python3.12/dist-packages/vllm/v1/engine/utils.py](https://localhost:8080/#) in wait_for_engine_startup(handshake)
    957     if coord is not None:
--> 958         raise failure
""")
    assert one.type_name == "RuntimeError"
    assert one.frames[-1].function == "wait_for_engine_startup"
    assert one.frames[-1].file.endswith("vllm/v1/engine/utils.py")


@pytest.mark.parametrize(
    ("frame", "read"),
    [
        ("/app/a.py, in step", "/app/a.py:0 in step"),
        ("/app/a.py, line 12, in step", "/app/a.py:12 in step"),
        ("/app/a.py:12 in step", "/app/a.py:12 in step"),
        ("/app/a.py:12: in step", "/app/a.py:12 in step"),
        ('File "/app/a.py", in step', "/app/a.py:0 in step"),
        ('File ".../a.py", line ~212, in step', ".../a.py:212 in step"),
        ('File "/app/a.py", line N, in step', "/app/a.py:0 in step"),
        (r"  File \"/app/a.py\", line 12, in step", "/app/a.py:12 in step"),
    ],
)
def test_a_frame_is_read_however_it_was_written(frame, read):
    """By people, pytest, or in a JSON text."""
    (one,) = _read(f"{frame}\n    assert x in y\nAssertionError")
    assert [str(found) for found in one.frames] == [read]
    assert one.frames[-1].code == "assert x in y"


@pytest.mark.parametrize(
    "text",
    [
        "train.py in main",
        "see /app/a.py, in which all is well",
        "/app/a.py, line 12",
        "/app/a.py in step, as said",
    ],
)
def test_a_path_in_a_sentence_is_no_frame(text):
    """Only a whole line that says where."""
    assert _read(f"{text}\n    assert x in y") == []


def test_what_pytest_says_of_an_error_is_read():
    """Its short form marks it with an E and three blanks."""
    (one,) = _read("/app/a.py:12: in step\n    assert x in y\nE   AssertionError: no")
    assert (one.type_name, one.message) == ("AssertionError", "no")


def test_a_type_before_the_frame_of_another_process_ends_the_first():
    """The message comes a line later."""
    ended, other = _read("""\
  File "/app/a.py", line 1, in f
    g()
ValueError  File "/app/a.py", line 2, in g

: size (3) is odd
""")
    assert (ended.type_name, [frame.function for frame in ended.frames]) == ("ValueError", ["f"])
    assert (other.type_name, other.message) == ("ValueError", "size (3) is odd")
    assert [frame.function for frame in other.frames] == ["g"]


def test_short_frames_below_a_message_belong_to_it():
    """As people list them, the innermost first."""
    (one,) = _read("AssertionError: no slot\n  pool.py, line 4, in alloc\n  cache.py, line 9, in insert")
    assert (one.type_name, one.message.splitlines()[1:]) == (
        "AssertionError",
        ["pool.py, line 4, in alloc", "cache.py, line 9, in insert"],
    )


@pytest.mark.parametrize("head", ["Exception has occurred: KeyError", "发生异常: KeyError"])
@pytest.mark.parametrize(
    "note", ["", "       (note: full exception trace is shown but execution is paused at: main)"]
)
@pytest.mark.parametrize("last", ["", "KeyError: 'id'\n"])
def test_a_debugger_prints_the_innermost_frame_first(head, note, last):
    """VS Code: the type, the message, the frames inside out, and the last line of Python where it was pasted."""
    (one,) = _read(f"""\
{head}{note}
'id'
  File "/app/data.py", line 7, in row
    return table["id"]
  File "/app/main.py", line 9, in main (Current frame)
    row(table)
{last}""")
    assert (one.type_name, one.message) == ("KeyError", "'id'")
    assert [frame.function for frame in one.frames] == ["main", "row"]
    assert one.frames[-1].code == 'return table["id"]'


def test_the_order_of_a_debugger_ends_with_its_traceback():
    """What Python prints next begins with the outermost frame again."""
    held, printed = _read("""\
Exception has occurred: KeyError
'id'
  File "/app/data.py", line 7, in row
  File "/app/main.py", line 9, in main
Traceback (most recent call last):
  File "/app/main.py", line 9, in main
  File "/app/data.py", line 7, in row
KeyError: 'id'
""")
    assert [frame.function for frame in held.frames] == ["main", "row"]
    assert [frame.function for frame in printed.frames] == ["main", "row"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "(Runner pid=5)     assert a.b is not None\n(Runner pid=5) AssertionError",
            "assert a.b is not None",
        ),
        ("  assert a == b\n  ^^^^^^\nAssertionError", "assert a == b"),
        ("    assert a == b\nsomething else\nAssertionError", ""),
        ("    assert a == b, text\nAssertionError: b is 3", "b is 3"),
        ("    assert a == b\nValueError", ""),
    ],
)
def test_an_assertion_whose_frame_was_cut_off_says_itself(text, message):
    """The line of code above a bare AssertionError is all that is left of its place."""
    assert _read(text)[-1].message == message


def test_an_assertion_below_the_code_of_another_frame_is_not_that_frames():
    """The frame keeps its own code; an assertion that has its frame needs no message."""
    head = 'Traceback (most recent call last):\n  File "/app/a.py", line 9, in f\n'
    (cut,) = _read(f"{head}    return g(*args)\n    assert x == 1\nAssertionError")
    assert (cut.message, cut.frames[-1].code) == ("assert x == 1", "return g(*args)")
    (whole,) = _read(f"{head}    assert x == 1\nAssertionError")
    assert (whole.message, whole.frames[-1].code) == ("", "assert x == 1")


@pytest.mark.parametrize(
    ("raised", "printed", "message"),
    [
        ("raise RuntimeError('worker {} is gone'.format(n))", "RuntimeError: worke", "worker {} is gone"),
        ("raise RuntimeError('worker is gone')", "RuntimeError: worker 3 is gone", "worker 3 is gone"),
        ("raise RuntimeError(text)", "RuntimeError", ""),
        ("raise ValueError('worker is gone')", "RuntimeError: worke", "worke"),
    ],
)
def test_a_message_in_which_the_text_ends_is_that_of_the_code(raised, printed, message):
    """Only where it is the beginning of what the code says."""
    (one,) = _read(f'  File "/app/a.py", line 9, in f\n    {raised}\n{printed}')
    assert one.message == message


def test_a_dump_whose_head_was_cut_off_is_no_exception():
    """Faulthandler writes no comma before "in"; a traceback below it is one."""
    dump = '  File "/app/a.py", line 9 in f\n  File "/app/b.py", line 3 in <module>\n'
    assert _read(dump) == []
    (one,) = _read(f'{dump}Traceback (most recent call last):\n  File "/app/c.py", line 1, in g\nKeyError: 3')
    assert [frame.file for frame in one.frames] == ["/app/c.py"]
    (one,) = _read(f'  File "/app/c.py", line 1, in g\nKeyError: 3\n{dump}')
    assert one.message == "3", "what was complete before it stays"


def test_a_notebook_names_no_function_at_import():
    """Its frame is that of the module."""
    text = "KeyError     Traceback (most recent call last)\nFile ~/lib/site-packages/a.py:9\n----> 9 t[k]\n\nKeyError: 3"
    (one,) = _read(text)
    assert [(frame.line, frame.function, frame.code) for frame in one.frames] == [(9, "<module>", "t[k]")]


@pytest.mark.parametrize(
    "next_line", ["wandb: Run history:", "srun: error: node1: task 0", "ERROR: it failed", "note: see above"]
)
def test_what_another_program_says_next_is_no_exception(next_line):
    """Where the exception itself was cut off, the code that raised it still tells."""
    (one,) = _read(f'  File "/app/a.py", line 9, in f\n    assert self.worker is not None\n{next_line}')
    assert (one.type_name, one.message) == ("AssertionError", "")


@pytest.mark.parametrize("name", ["socket.timeout", "struct.error", "_queue.Full", "Again", "ArrowInvalid"])
def test_after_frames_any_other_name_is_an_exceptions(name):
    """Few end in "Error"."""
    (one,) = _read(f'  File "/app/a.py", line 9, in f\n    g()\n{name}: it says so')
    assert (one.type_name, one.message) == (name, "it says so")

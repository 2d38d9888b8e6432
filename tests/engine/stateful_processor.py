"""A logits processor that looks at the output so far, as users bring them along (``logits_processors=``)."""

from __future__ import annotations

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


class NeverTwice(AdapterLogitsProcessor):
    """Forbids what was said in the last thirty tokens, to requests that ask for it."""

    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        return never_twice if (params.extra_args or {}).get("never_twice") else None


def never_twice(output, logits):
    logits[list(output[-30:])] = float("-inf")
    return logits

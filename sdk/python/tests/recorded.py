"""The program of the recorded conversation."""

import garenne


@garenne.task("image.resize")
def resize(cx, payload):
    width = payload["width"]
    if width < 0:
        raise garenne.Reject(f"width is {width}", reason="invalid-payload")
    if width > 1000:
        cx.wait(30)
        cx.check()
    cx.progress(0.5)
    cx.follow_up("image.publish", {"name": "small.png"}, delay=1)
    return {"bytes": 5120}


if __name__ == "__main__":
    garenne.run()

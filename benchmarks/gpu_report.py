"""What `gpu.py` found, as lines of text; the errors among them."""


def lines(result):
    """Of the table, the errors among them."""
    where = result["conditions"]
    if "error" in where:
        yield f"nothing ran: {where['error']}"
        return
    yield f"{where['device']} ({where['platform']}), jax {where['jax']}"
    yield f"a copy: {where['copy_bytes_per_s'] / 1e9:.0f} GB/s"
    yield from check_lines(result["checks"])
    yield from neuron_lines(result["neuron"], result["spikingjelly"].get("neuron", {}))
    theirs = result["spikingjelly"]
    yield from vgg_lines(result["vgg"])
    if "error" in theirs:
        yield f"SpikingJelly: {theirs['error']}"
        return
    yield from vgg_lines({f"SpikingJelly {n}": theirs[n] for n in ("plain", "level 1")})


def check_lines(found):
    if "error" in found:
        yield f"checks: {found['error']}"
        return
    wrong = [row for row in found["rows"] if not row["right"]]
    yield f"checks: {len(found['rows'])} run, {len(wrong)} wrong (seed {found['seed']})"
    yield from (f"  wrong: {row}" for row in wrong)


def neuron_lines(found, theirs):
    rows = [*found.get("rows", ()), *theirs.get("rows", ())]
    yield f"{'LIF':10s} {'dtype':10s} {'way':20s} {'ms':>10s} {'over a copy':>12s}"
    for row in rows:
        over = f"{row['over_floor']:12.2f}" if "over_floor" in row else ""
        names = f"{row['pass']:10s} {row['dtype']:10s} {row['way']:20s}"
        yield f"{names} {row['seconds'] * 1e3:10.3f} {over}"
    for what, part in (("LIF", found), ("SpikingJelly's LIF", theirs)):
        if "error" in part:
            yield f"{what}: {part['error']}"


def vgg_lines(rows):
    heads = ("ms/step", "compiled MiB", "allocator MiB", "workspace MiB")
    yield f"{'VGG':24s}" + "".join(f"{head:>15s}" for head in heads)
    for name, row in rows.items():
        if "error" in row:
            yield f"{name:24s} {row['error']}"
            continue
        sizes = (row.get(f"{n}_bytes") for n in ("compiled", "allocator", "workspace"))
        cells = ["" if n is None else f"{n / 2**20:.1f}" for n in sizes]
        cells = [f"{row['seconds'] * 1e3:.2f}", *cells]
        yield f"{name:24s}" + "".join(f"{cell:>15s}" for cell in cells)

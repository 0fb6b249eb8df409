"""The module on a GPU, with PyTorch: against the CPU, in streams and in captured graphs."""
import pathlib
import threading

import numpy as np
import pytest

import halfbyte

torch = pytest.importorskip("torch", reason="torch is not installed")

MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny-v4-nvfp4"
EXPERTS, HIDDEN, INTERMEDIATE, TOP_K, TOKENS = 16, 256, 128, 4, 37


def projection(rng, rows, columns):
    codes = rng.integers(0, 256, (EXPERTS, rows, columns // 2), dtype=np.uint8)
    scales = rng.integers(0x30, 0x40, (EXPERTS, rows, columns // 16), dtype=np.uint8)
    return codes, scales, rng.uniform(0.01, 0.02, EXPERTS).astype(np.float32)


@pytest.fixture(scope="module")
def weights():
    rng = np.random.default_rng(1)
    return (projection(rng, INTERMEDIATE, HIDDEN), projection(rng, INTERMEDIATE, HIDDEN),
            projection(rng, HIDDEN, INTERMEDIATE))


def make(weights, **options):
    try:
        return halfbyte.MoeLayer.from_nvfp4(*weights, top_k=TOP_K, swiglu_limit=10,
                                            **{"device": "cuda", **options})
    except ValueError as error:
        if "built without CUDA" in str(error) or "no GPU can be used" in str(error):
            pytest.skip(str(error))
        raise


def inputs(seed, tokens=TOKENS):
    """hidden, ids and weights on the GPU."""
    rng = np.random.default_rng(seed)
    hidden = torch.from_numpy(rng.standard_normal((tokens, HIDDEN), np.float32)).bfloat16()
    ids = np.stack([rng.permutation(EXPERTS)[:TOP_K] for _ in range(tokens)]).astype(np.int32)
    chosen = rng.uniform(0.1, 1, (tokens, TOP_K)).astype(np.float32)
    return hidden.cuda(), torch.from_numpy(ids).cuda(), torch.from_numpy(chosen).cuda()


def cosine(a, b):
    a, b = a.double().flatten(), b.double().flatten()
    return float(a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize("arithmetic, bound", [("w4a16", 1 - 1e-5), ("w4a4", 1 - 1e-4)])
def test_agrees_with_the_cpu(weights, arithmetic, bound):
    layer = make(weights, arithmetic=arithmetic)
    on_cpu = make(weights, arithmetic=arithmetic, device="cpu")
    hidden, ids, chosen = inputs(2)
    out = layer(hidden, ids, chosen)
    assert out.dtype == torch.bfloat16 and out.device == hidden.device
    sums = layer(hidden, ids, chosen, torch.empty(hidden.shape, device="cuda"))
    assert torch.equal(sums.bfloat16(), out)
    want = on_cpu(hidden.float().cpu().numpy(), ids.cpu().numpy(), chosen.cpu().numpy())
    assert cosine(sums.cpu(), torch.from_numpy(want)) >= bound
    assert layer.info["gpu"] == 0 and layer.info["peak_device_bytes"] > layer.info["device_bytes"]


@pytest.mark.parametrize("arithmetic", ["w4a16", "w4a4"])
def test_a_captured_graph_gives_the_bits_of_eager_calls(weights, arithmetic):
    layer = make(weights, arithmetic=arithmetic)
    eager = [(args, layer(*args).clone()) for args in map(inputs, range(5))]
    held = [x.clone() for x in eager[0][0]]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(*held)
    for replay in range(50):
        args, expected = eager[replay * 3 % 5]
        for to, value in zip(held, args):
            to.copy_(value)
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, expected), replay


def test_routing_is_captured_with_the_layer(weights):
    layer = make(weights)
    logits = torch.randn(TOKENS, EXPERTS, device="cuda")
    hidden = inputs(3)[0]
    layer(hidden, *layer.route(logits))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(hidden, *layer.route(logits))
    logits.copy_(torch.randn(TOKENS, EXPERTS))
    graph.replay()
    ids, chosen = layer.route(logits)
    assert torch.equal(out, layer(hidden, ids, chosen))
    want = make(weights, device="cpu").route(logits.cpu().numpy())
    np.testing.assert_array_equal(ids.cpu().numpy(), want[0])
    np.testing.assert_allclose(chosen.cpu().numpy(), want[1], rtol=1e-5)
    assert layer.counters()["routed_rows"] == 3 * TOKENS


def test_work_goes_into_the_current_stream(weights):
    layer = make(weights)
    args = inputs(4)
    expected = layer(*args)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    source = torch.zeros_like(args[0])
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # what comes before in the stream
        source.copy_(args[0])
        out = layer(source, *args[1:])
        again = layer(source, *args[1:], stream=stream.cuda_stream)
    # Another stream meanwhile: the layer takes a workspace of its own for it.
    meanwhile = layer(*args)
    stream.synchronize()
    assert torch.equal(out, expected) and torch.equal(again, expected)
    assert torch.equal(meanwhile, expected)


def test_threads_with_streams_of_their_own_share_a_layer(weights):
    layer = make(weights, max_tokens=16)  # in pieces
    args = inputs(5)
    expected = layer(*args)
    torch.cuda.synchronize()
    results = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                results.append(layer(*args))
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80 and all(torch.equal(out, expected) for out in results)


def test_arrays_with_the_cuda_array_interface_are_taken(weights):
    class Bare:
        """As Numba's arrays: no DLPack."""

        def __init__(self, tensor, kind):
            self.tensor, self.shape = tensor, tuple(tensor.shape)
            self.__cuda_array_interface__ = {
                "shape": self.shape, "typestr": kind, "data": (tensor.data_ptr(), False),
                "strides": None, "version": 3, "stream": None}

    layer = make(weights)
    hidden, ids, chosen = inputs(6)
    expected = layer(hidden, ids, chosen, torch.empty(hidden.shape, device="cuda"))
    out = torch.empty(hidden.shape, device="cuda")
    layer(Bare(hidden, "<V2"), Bare(ids, "<i4"), Bare(chosen, "<f4"), Bare(out, "<f4"))
    torch.cuda.synchronize()
    assert torch.equal(out, expected)


def test_a_checkpoint_layer_routes_by_its_table(weights):
    make(weights)  # skips without a GPU
    layer = halfbyte.MoeLayer.open(MODEL, 0, device="cuda")
    on_cpu = halfbyte.MoeLayer.open(MODEL, 0)
    logits = torch.randn(3, 32, device="cuda")
    token_ids = torch.tensor([5, 6, 1 << 20], dtype=torch.int32, device="cuda")
    ids, chosen = layer.route(logits, token_ids)
    want_ids, want = on_cpu.route(logits[:2].cpu().numpy(), token_ids[:2].cpu().numpy())
    np.testing.assert_array_equal(ids[:2].cpu().numpy(), want_ids)
    np.testing.assert_allclose(chosen[:2].cpu().numpy(), want, rtol=1e-5)
    assert (ids[2] == -1).all() and not chosen[2].any()  # not in the vocabulary
    hidden = torch.randn(3, 256, device="cuda").bfloat16()
    out = layer(hidden, ids, chosen, torch.empty(3, 256, device="cuda"))
    want = on_cpu(hidden.float().cpu().numpy(), ids.cpu().numpy(), chosen.cpu().numpy())
    assert cosine(out.cpu(), torch.from_numpy(want)) >= 1 - 1e-5
    assert not out[2].any()


def test_the_torch_operator_computes_on_the_gpu(weights):
    import halfbyte.torch_op

    layer = make(weights)
    number = halfbyte.torch_op.register(layer)
    hidden, ids, chosen = inputs(7)
    out = torch.ops.halfbyte.moe(hidden, ids.long(), chosen, number)
    assert torch.equal(out, layer(hidden, ids, chosen))


def test_what_cannot_work_is_a_sentence(weights):
    layer = make(weights)
    hidden, ids, chosen = inputs(8)
    for args, words in [((hidden.float(), ids, chosen), "hidden is float32, on a GPU it must be"),
                        ((hidden, ids.long(), chosen), "topk_ids is something else"),
                        ((hidden.cpu(), ids, chosen, hidden), "hidden is host memory"),
                        ((hidden.t(), ids, chosen, hidden), "must be contiguous"),
                        ((hidden[:, 16:].contiguous(), ids, chosen), "hidden has 240 columns"),
                        ((hidden, ids[1:], chosen), "choices"),
                        ((hidden, ids, chosen, hidden), "out overlaps hidden")]:
        with pytest.raises(ValueError, match=words):
            layer(*args)
    with pytest.raises(ValueError, match="no GPU 99"):
        make(weights, device="cuda:99")
    with pytest.raises(ValueError, match="not w4a8"):
        make(weights, arithmetic="w4a8")

"""The module against a dense numpy reference, and against torch where torch is installed."""
import json
import pathlib
import threading

import numpy as np
import pytest

import halfbyte

MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny-v4-nvfp4"
EXPERTS, HIDDEN, INTERMEDIATE, TOP_K, TOKENS = 6, 64, 32, 2, 11
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E4M3 = np.array([(b & 7) * 2.0**-9 if b < 8 else (8 + (b & 7)) * 2.0 ** ((b >> 3) - 10)
                 for b in range(127)])


def random_projection(rng, rows, columns):
    """Codes, scales and global scales of one projection of all experts."""
    codes = rng.integers(0, 256, (EXPERTS, rows, columns // 2), dtype=np.uint8)
    scales = rng.integers(0x30, 0x48, (EXPERTS, rows, columns // 16), dtype=np.uint8)
    return codes, scales, rng.uniform(0.01, 0.04, EXPERTS).astype(np.float32)


def decode(codes, scales, global_scales):
    """float64 [experts, rows, columns]"""
    values = E2M1[np.stack([codes & 15, codes >> 4], axis=-1)]
    values = values.reshape(*codes.shape[:2], -1, 16) * E4M3[scales][..., None]
    return values.reshape(*codes.shape[:2], -1) * global_scales.astype(float)[:, None, None]


def dense(projections, hidden, ids, weights, limit=10.0):
    """The layer in float64, token by token, from dequantized weights."""
    gate, up, down = (decode(*projection) for projection in projections)
    out = np.zeros(hidden.shape)
    for t, row in enumerate(hidden.astype(float)):
        for e, weight in zip(ids[t], weights[t]):
            if 0 <= e < EXPERTS:
                g = np.minimum(gate[e] @ row, limit)
                u = np.clip(up[e] @ row, -limit, limit)
                out[t] += weight * (down[e] @ (g / (1 + np.exp(-g)) * u))
    return out


def cosine(a, b):
    a, b = np.ravel(a).astype(float), np.ravel(b).astype(float)
    return a @ b / np.sqrt((a @ a) * (b @ b))


@pytest.fixture
def problem():
    rng = np.random.default_rng(1)
    projections = (random_projection(rng, INTERMEDIATE, HIDDEN),
                   random_projection(rng, INTERMEDIATE, HIDDEN),
                   random_projection(rng, HIDDEN, INTERMEDIATE))
    hidden = np.round(rng.standard_normal((TOKENS, HIDDEN)) * 64).astype(np.float32) / 64
    ids = np.stack([rng.permutation(EXPERTS)[:TOP_K] for _ in range(TOKENS)]).astype(np.int32)
    weights = rng.uniform(0.1, 1, (TOKENS, TOP_K)).astype(np.float32)
    return projections, hidden, ids, weights


@pytest.mark.parametrize("arithmetic, bound", [("ref", 1 - 1e-5), ("w4a16", 1 - 1e-5),
                                               ("w4a4", 0.98), ("w4a8", 1 - 1e-3)])
def test_agrees_with_the_dense_reference(problem, arithmetic, bound):
    projections, hidden, ids, weights = problem
    ids[3] = -1
    layer = halfbyte.MoeLayer.from_nvfp4(*projections, top_k=TOP_K, swiglu_limit=10,
                                         arithmetic=arithmetic, max_tokens=4)
    out = layer(hidden, ids, weights)
    assert out.dtype == np.float32 and out.shape == hidden.shape
    assert not out[3].any()
    assert cosine(out, dense(projections, hidden, ids, weights)) >= bound


def test_a_token_alone_gives_the_same_bits(problem):
    projections, hidden, ids, weights = problem
    layer = halfbyte.MoeLayer.from_nvfp4(*projections, top_k=TOP_K, arithmetic="w4a4")
    out = layer(hidden, ids, weights)
    for t in range(TOKENS):
        alone = layer(hidden[t : t + 1], ids[t : t + 1], weights[t : t + 1])
        np.testing.assert_array_equal(alone, out[t : t + 1])


def test_threads_share_a_layer(problem):
    projections, hidden, ids, weights = problem
    layer = halfbyte.MoeLayer.from_nvfp4(*projections, top_k=TOP_K, threads=1)
    expected = layer(hidden, ids, weights)
    results = []
    threads = [threading.Thread(target=lambda: results.append(layer(hidden, ids, weights)))
               for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_the_arrays_of_the_weights_live_as_long_as_the_layer(problem):
    projections, hidden, ids, weights = problem
    expected = dense(projections, hidden, ids, weights, np.inf)
    copies = [tuple(np.array(part) for part in projection) for projection in projections]
    layer = halfbyte.MoeLayer.from_nvfp4(*copies, top_k=TOP_K)
    del copies
    assert cosine(layer(hidden, ids, weights), expected) >= 1 - 1e-5


def test_a_checkpoint_layer_routes_and_runs():
    layer = halfbyte.MoeLayer.open(MODEL, 0, arithmetic="w4a4")
    assert layer.info["routes_by_token_id"] and layer.info["hidden"] == 256
    rng = np.random.default_rng(2)
    token_ids = np.array([5, 6, 5], np.int32)
    logits = rng.standard_normal((3, 32)).astype(np.float32)
    ids, weights = layer.route(logits, token_ids)
    np.testing.assert_array_equal(ids[0], ids[2])
    np.testing.assert_allclose(weights.sum(axis=1), 1.5, rtol=1e-6)
    assert np.isfinite(layer(rng.standard_normal((3, 256)).astype(np.float32), ids, weights)).all()
    counters = layer.counters()
    assert counters["gate_up"]["blocks"] == 3 * 256 // 16
    assert counters["routed_rows"] == 3


def test_scales_of_a_file_are_used(tmp_path):
    path = tmp_path / "scales.json"
    scales = [{"gate_up": {"scale": 0.002}, "down": {"scale": 0.003}}] * 6
    model = {"layers": 6, "experts": 32, "hidden": 256, "intermediate": 128}
    path.write_text(json.dumps({"activation_scales": 1, "routing_weight": "before_down",
                                "model": model, "layers": scales}))
    layer = halfbyte.MoeLayer.open(MODEL, 0, arithmetic="w4a4", activation_scales_file=path)
    assert layer.info["static_scales"]
    with pytest.raises(ValueError, match="must be HALFBYTE_MOE_SCALES_AUTO"):
        halfbyte.MoeLayer.open(MODEL, 0, arithmetic="w4a4", activation_scales_file=path,
                               activation_scales="static")


def test_the_router_of_a_layer_from_tensors(problem):
    projections, *_ = problem
    bias = np.array([0, 0, 0, 0, 0, 3], np.float32)
    router = dict(score="identity", weights="keep_scores", scaling_factor=2, bias=bias, groups=3,
                  chosen_groups=1)
    layer = halfbyte.MoeLayer.from_nvfp4(*projections, top_k=TOP_K, router=router)
    ids, weights = layer.route(np.array([[9, 0, 5, 6, 7, 2]], np.float32))
    np.testing.assert_array_equal(ids, [[4, 5]])  # sums of the groups: 9, 11, 12 by bias
    np.testing.assert_array_equal(weights, [[14, 4]])
    with pytest.raises(ValueError, match="router bias"):
        halfbyte.MoeLayer.from_nvfp4(*projections, top_k=TOP_K, router=dict(bias=bias[1:]))
    with pytest.raises(ValueError, match="router_bias: nan for expert 2 is not finite"):
        halfbyte.MoeLayer.from_nvfp4(
            *projections, top_k=TOP_K,
            router=dict(bias=np.where(np.arange(EXPERTS) == 2, np.nan, 0).astype(np.float32)))
    with pytest.raises(ValueError, match="4 equal groups"):
        halfbyte.MoeLayer.from_nvfp4(*projections, top_k=TOP_K,
                                     router=dict(groups=4, chosen_groups=1))
    with pytest.raises(ValueError, match="score: 'x' is none of"):
        halfbyte.MoeLayer.from_nvfp4(*projections, top_k=TOP_K, router=dict(score="x"))


def test_arrays_that_do_not_fit_are_named(problem):
    projections, hidden, ids, weights = problem
    layer = halfbyte.MoeLayer.from_nvfp4(*projections, top_k=TOP_K)
    for arguments, sentence in (
            ((hidden.tolist(), ids, weights, np.empty_like(hidden)),
             "hidden must be an array of float32 or bfloat16 with 2 dimensions .*not a list"),
            ((hidden, ids[0], weights), "topk_ids must be .* int32 with 2 .*not int32 with 1 dim"),
            ((hidden, ids, weights.astype(np.complex64)), "topk_weights must .*not complex64"),
            ((hidden, ids.astype("datetime64[s]"), weights), "topk_ids must .*not datetime64"),
            ((hidden, ids, weights, np.empty((HIDDEN, TOKENS), np.float32).T), "out must .*without"),
            ((hidden, None, weights), "topk_ids must .*not a NoneType")):
        with pytest.raises(TypeError, match=sentence):
            layer(*arguments)
    with pytest.raises(TypeError, match="logits must be .*not a list"):
        layer.route([[0.0] * EXPERTS])
    with pytest.raises(TypeError, match="bias must be .* float32 with 1 dimensions.*not a list"):
        halfbyte.MoeLayer.from_nvfp4(*projections, top_k=TOP_K, router=dict(bias=[0.0] * EXPERTS))
    with pytest.raises(TypeError, match="up scales must be .* uint8 with 3 .*not uint8 with 2"):
        codes, scales, global_scales = projections[1]
        halfbyte.MoeLayer.from_nvfp4(projections[0], (codes, scales[0], global_scales),
                                     projections[2], top_k=1)


def test_what_cannot_work_is_a_sentence(problem):
    projections, hidden, ids, weights = problem
    layer = halfbyte.MoeLayer.from_nvfp4(*projections, top_k=TOP_K)
    with pytest.raises(ValueError, match="/nowhere"):
        halfbyte.MoeLayer.open("/nowhere", 0)
    with pytest.raises(ValueError, match="layers are 0..5"):
        halfbyte.MoeLayer.open(MODEL, 6)
    with pytest.raises(ValueError, match="there is no \"w2\""):
        halfbyte.MoeLayer.open(MODEL, 0, arithmetic="w2")
    with pytest.raises(ValueError, match="token_ids is NULL"):
        halfbyte.MoeLayer.open(MODEL, 0).route(np.zeros((1, 32), np.float32))
    with pytest.raises(ValueError, match="device: 'gpu' is neither"):
        halfbyte.MoeLayer.open(MODEL, 0, device="gpu")
    with pytest.raises(ValueError, match="GPU|built without CUDA"):
        halfbyte.MoeLayer.open(MODEL, 0, device="cuda:1000")
    with pytest.raises(ValueError, match="max_tokens: 0"):
        halfbyte.MoeLayer.from_nvfp4(*projections, top_k=TOP_K, max_tokens=0)
    with pytest.raises(ValueError, match="hidden has 63 columns"):
        layer(hidden[:, 1:].copy(), ids, weights)
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        layer(hidden.astype(np.float64), ids, weights)
    with pytest.raises(ValueError, match="choices"):
        layer(hidden, ids[1:], weights)
    with pytest.raises(ValueError, match="top_k: 4"):
        layer(hidden, np.tile(ids, 2), np.tile(weights, 2))
    with pytest.raises(ValueError, match="different numbers of experts"):
        codes, scales, global_scales = projections[0]
        halfbyte.MoeLayer.from_nvfp4((codes, scales[1:], global_scales), *projections[1:], top_k=1)


def test_no_tokens_give_no_rows(problem):
    projections, hidden, ids, weights = problem
    layer = halfbyte.MoeLayer.from_nvfp4(*projections, top_k=TOP_K)
    assert layer(hidden[:0], ids[:0], weights[:0]).shape == (0, HIDDEN)


def test_the_torch_operator_agrees_with_a_dense_torch_layer(problem):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import halfbyte.torch_op

    projections, hidden, ids, weights = problem
    layer = halfbyte.MoeLayer.from_nvfp4(*projections, top_k=TOP_K, swiglu_limit=10)
    number = halfbyte.torch_op.register(layer)
    gate, up, down = (torch.from_numpy(decode(*projection)) for projection in projections)
    x, w = torch.from_numpy(hidden), torch.from_numpy(weights)
    chosen = torch.from_numpy(ids.astype(np.int64))
    g = torch.einsum("th,tkih->tki", x.double(), gate[chosen]).clamp(max=10)
    u = torch.einsum("th,tkih->tki", x.double(), up[chosen]).clamp(-10, 10)
    h = torch.nn.functional.silu(g) * u
    expected = torch.einsum("tk,tki,tkhi->th", w.double(), h, down[chosen])

    out = torch.ops.halfbyte.moe(x, chosen, w, number)
    assert out.dtype == torch.float32
    assert cosine(out.numpy(), expected.numpy()) >= 1 - 1e-5
    rounded = torch.ops.halfbyte.moe(x.bfloat16(), chosen, w, number)
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, torch.ops.halfbyte.moe(x.bfloat16().float(), chosen, w,
                                                       number).bfloat16())
    compiled = torch.compile(lambda *args: torch.ops.halfbyte.moe(*args), backend="eager")
    assert torch.equal(compiled(x, chosen, w, number), out)

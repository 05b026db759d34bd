-- test_transformer.lua - encoder and decoder layers against PyTorch's results and gradients, and the blocks that
-- recipes share against the ops that they stand for.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, F = gb.nn, gb.nn.functional

local goldens = dofile("tests/lua/goldens.lua")

local function stored(row, name, dtype)
  local text = row.tensors[name]
  local t = text and goldens.tensor(text)
  return t and (t.dtype == "bool" and t or t:to(dtype)):to(gb.get_default_device())
end

-- The masks of a kind in the order of its forward, after what goes in.
local masks = {
  TransformerEncoderLayer = { "src_mask", "src_key_padding_mask" },
  TransformerDecoderLayer = { "tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask" },
  Transformer = { "src_mask", "tgt_mask", "memory_mask", "src_key_padding_mask", "tgt_key_padding_mask",
    "memory_key_padding_mask" },
}

local function near(name, value, exact, most)
  local distance = ((value:to("float64") - exact):abs():max() / exact:abs():max()):item()
  if not (distance <= most) then
    error(("%s: off by %g of its largest element, at most %g"):format(name, distance, most))
  end
end

describe("PyTorch's layers", function()
  for _, row in ipairs(goldens.read("training", { "transformers" })) do
    -- Sums of at most some hundred terms; the biases of keys have a gradient of 0, which rounding makes small.
    for dtype, most in pairs { float64 = 1e-12, float32 = 2e-5 } do
      it(("%s in %s"):format(row.name, dtype), function()
        local o, weights = { dtype = dtype }, {}
        for name, value in pairs(row.options) do o[name] = value end
        o.d_model, o.nhead = nil, nil
        local module = nn[row.kind](row.options.d_model, row.options.nhead, o)
        for name in pairs(row.tensors) do
          local weight = name:match("^weight%.(.+)$")
          if weight then weights[weight] = stored(row, name, dtype) end
        end
        module:load_state_dict(weights)
        local arguments, count = {}, 0
        for i = 1, 2 do
          local x = stored(row, "in" .. i - 1, dtype)
          if x then
            arguments[i], count = x:requires_grad_(), i
          end
        end
        for i, name in ipairs(masks[row.kind]) do arguments[count + i] = stored(row, "mask." .. name, dtype) end
        local y = module(table.unpack(arguments, 1, count + #masks[row.kind]))
        expect(y.dtype):to_be(dtype)
        near("out", y, stored(row, "out", "float64"), most)
        y:backward(stored(row, "up", dtype))
        for i = 1, count do near("grad", arguments[i].grad, stored(row, "grad" .. i - 1, "float64"), most) end
        for name, p in module:named_parameters() do
          near(name, p.grad, stored(row, "dweight." .. name, "float64"), most)
        end
      end)
    end
  end

  it("is_causal is the mask that hides what comes later", function()
    local net, x = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, { dropout = 0 }), 2), gb.randn(5, 3, 8)
    local mask = gb.ones(5, 5):triu(1):to("bool")
    expect(net(x, nil, nil, { is_causal = true })):to_be_close(net(x, mask), 1e-6)
  end)
  it("a stack begins with the weights of its layer, each copy with its own memory", function()
    local one = nn.TransformerEncoderLayer(8, 2)
    local net = nn.TransformerEncoder(one, 2, { norm = nn.LayerNorm(8) })
    expect(net.layers[2].linear1.weight):to_equal_bits(one.linear1.weight)
    gb.no_grad(function() net.layers[1].linear1.weight:zero_() end)
    expect(net.layers[2].linear1.weight):to_equal_bits(one.linear1.weight)
    one:to("bfloat16")
    expect(nn.TransformerEncoder(one, 1).layers[1].norm1.weight.dtype):to_be("bfloat16")
    expect(net:state_dict()["layers.1.self_attn.in_proj_weight"]):to_have_shape(24, 8)
    expect(net:state_dict()["norm.bias"]):to_have_shape(8)
  end)
  it("drop in training only", function()
    local net, x = nn.TransformerEncoderLayer(8, 2, { dropout = 0.5 }), gb.randn(5, 3, 8)
    expect((net(x) - net(x)):abs():max():item() > 0):to_be(true)
    net:eval()
    expect(net(x)):to_equal_bits(net(x))
  end)
  it("say what does not fit", function()
    expect(function() nn.TransformerEncoderLayer(8, 3) end):to_fail("3 heads do not divide the size 8")
    expect(function() nn.TransformerEncoderLayer(8, 2,
      { dropout = 2 }) end):to_fail("dropout lies between 0 and 1, got 2")
    expect(function() nn.TransformerEncoderLayer(8,
      2)(gb.rand(2, 3, 4)) end):to_fail("[time, batch] of 8 features, got [2, 3, 4]")
    expect(function() nn.TransformerEncoder(nn.Linear(2, 2), 2) end):to_fail("copies of a TransformerEncoderLayer, \z
      got a Linear")
    expect(function() nn.TransformerDecoderLayer(8, 2)(gb.rand(2, 3, 8)) end):to_fail("memory")
  end)
end)

-- A state under the names that PyTorch 2 gives it, all of sines: the i-th of the sorted names begins at i - 1. The
-- numbers that are expected are PyTorch's, in float64, of weights filled alike.
local function state_of(shapes)
  local names, state = {}, {}
  for name in pairs(shapes) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do
    local count = 1
    for _, size in ipairs(shapes[name]) do count = count * size end
    state[name] = (gb.arange(count, { dtype = "float64" }) * 0.7 + (i - 1)):sin():reshape(shapes[name])
  end
  return state
end

local function cosines(start, ...)
  local shape = { ... }
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  return (gb.arange(count, { dtype = "float64" }) * 0.9 + start):cos():reshape(shape)
end

describe("load_state_dict of PyTorch's names", function()
  local double = { dtype = "float64" }
  local packed = { in_proj_weight = { 12, 4 }, in_proj_bias = { 12 }, ["out_proj.weight"] = { 4, 4 },
    ["out_proj.bias"] = { 4 } }
  local function attention(more)
    local o = { dtype = "float64" }
    for name, value in pairs(more or {}) do o[name] = value end
    return nn.MultiheadAttention(4, 2, o)
  end
  it("of attention whose projections are packed", function()
    local layer = attention()
    local missing, unexpected = layer:load_state_dict(state_of(packed))
    expect(#missing + #unexpected):to_be(0)
    expect(layer(cosines(0, 1, 3, 4)):flatten()):to_be_close({ 0.0467163, 1.3104269, -1.0570132, -0.1909942, -1.6678744,
      3.3968721, -3.2742131, 1.900751, -0.4699408, 2.2479174, -2.3070051, 1.2270559 }, 1e-6)
    expect(layer:state_dict()["qkv.weight"]):to_equal_bits(state_of(packed).in_proj_weight) -- saved by names of ours
  end)
  it("of attention without biases", function()
    local layer = attention { bias = false }
    layer:load_state_dict(state_of { in_proj_weight = { 12, 4 }, ["out_proj.weight"] = { 4, 4 } })
    expect(layer(cosines(0, 1, 3, 4)):flatten()):to_be_close({ 0.0228075, 0.2681618, -0.5281436, 0.7270956, 1.0486941,
      -1.1461473, 1.1111571, -0.9477668, 0.0048636, 0.24293, -0.4626518, 0.6289117 }, 1e-6)
  end)
  it("of attention with other features of keys and values, whose biases are packed", function()
    local layer = attention { kdim = 3, vdim = 5, add_bias_kv = true }
    layer:load_state_dict(state_of { q_proj_weight = { 4, 4 }, k_proj_weight = { 4, 3 }, v_proj_weight = { 4, 5 },
      in_proj_bias = { 12 }, bias_k = { 1, 1, 4 }, bias_v = { 1, 1, 4 }, ["out_proj.weight"] = { 4, 4 },
      ["out_proj.bias"] = { 4 } })
    local y = layer(cosines(0, 1, 2, 4), cosines(1, 1, 3, 3), cosines(2, 1, 3, 5))
    expect(y:flatten()):to_be_close({ -1.5455667, -0.2146154, -1.4638696, 0.3348789, -2.5999121, 1.5756213, -3.7831261,
      2.9151528 }, 1e-6)
  end)
  it("within other modules, and of a shared one under each of its names", function()
    local layer, alone = attention(), attention()
    local model = nn.Sequential(nn.Linear(4, 4, double), layer, nn.Sequential(layer))
    local state, own = { ["0.weight"] = gb.zeros(4, 4, double), ["0.bias"] = gb.zeros(4, double) }, state_of(packed)
    for name, value in pairs(own) do state["1." .. name], state["2.0." .. name] = value, value:clone() end
    model:load_state_dict(state)
    alone:load_state_dict(own)
    for name, value in pairs(alone:state_dict()) do expect(layer:state_dict()[name]):to_equal_bits(value) end
    state["2.0.in_proj_bias"]:add_(1)
    expect(function() model:load_state_dict(state) end):to_fail("two with different values")
  end)
  it("not where the names of both are there, or a tensor has another shape", function()
    local layer, state = attention(), state_of(packed)
    state["qkv.weight"] = gb.zeros(12, 4)
    expect(function() layer:load_state_dict(state) end):to_fail("missing: none; unexpected: in_proj_weight")
    state = state_of(packed)
    state.in_proj_weight = gb.zeros(8, 4)
    expect(function() layer:load_state_dict(state) end):to_fail(
      "in_proj_weight is of shape 8x4 in the state, where the module takes a tensor of shape 12x4")
    state.in_proj_weight = 5
    expect(function() layer:load_state_dict(state) end):to_fail("in_proj_weight is a number")
    state.in_proj_weight = nil
    expect(function() layer:load_state_dict(state) end):to_fail("missing: qkv.weight; unexpected: none")
    local without = attention { bias = false }
    expect(function() without:load_state_dict(state_of(packed)) end):to_fail("unexpected: in_proj_bias, out_proj.bias")
  end)
  it("of layers that have them here too: LSTM, GRU, encoder and decoder layers", function()
    local shapes = {}
    for layer = 0, 1 do
      for _, way in ipairs { "", "_reverse" } do
        local suffix = ("_l%d%s"):format(layer, way)
        shapes["weight_ih" .. suffix], shapes["weight_hh" .. suffix] = { 16, layer == 0 and 3 or 4 }, { 16, 2 }
        shapes["bias_ih" .. suffix], shapes["bias_hh" .. suffix] = { 16 }, { 16 }
        shapes["weight_hr" .. suffix] = { 2, 4 }
      end
    end
    local lstm = nn.LSTM(3, 4, { num_layers = 2, bidirectional = true, proj_size = 2, dtype = "float64" })
    lstm:load_state_dict(state_of(shapes))
    expect(lstm(cosines(0, 2, 1, 3)):flatten()):to_be_close({ 0.1779995, -0.2637546, 0.128363, -0.2461554, 0.3231697,
      -0.4228974, 0.0827691, -0.1717305 }, 1e-6)
    local gru = nn.GRU(3, 4, double)
    gru:load_state_dict(state_of { weight_ih_l0 = { 12, 3 }, weight_hh_l0 = { 12, 4 }, bias_ih_l0 = { 12 },
      bias_hh_l0 = { 12 } })
    expect(gru(cosines(0, 2, 1, 3)):flatten()):to_be_close({ 0.6688266, 0.3477591, 0.3146985, 0.9213253, 0.524717,
      0.8662434, 0.6231264, 0.1206722 }, 1e-6)
    local o = { dim_feedforward = 8, dropout = 0, dtype = "float64" }
    shapes = { ["linear1.weight"] = { 8, 4 }, ["linear1.bias"] = { 8 }, ["linear2.weight"] = { 4, 8 },
      ["linear2.bias"] = { 4 } }
    for name, shape in pairs(packed) do shapes["self_attn." .. name] = shape end
    for i = 1, 2 do shapes[("norm%d.weight"):format(i)], shapes[("norm%d.bias"):format(i)] = { 4 }, { 4 } end
    local encoder = nn.TransformerEncoderLayer(4, 2, o)
    encoder:load_state_dict(state_of(shapes))
    expect(encoder(cosines(0, 2, 1, 4)):flatten()):to_be_close({ -0.8759389, -0.4586604, 1.111357, 1.4590643,
      -0.6269297, -0.6584973, 0.9024114, 1.4806697 }, 1e-6)
    for name, shape in pairs(packed) do shapes["multihead_attn." .. name] = shape end
    shapes["norm3.weight"], shapes["norm3.bias"] = { 4 }, { 4 }
    local decoder = nn.TransformerDecoderLayer(4, 2, o)
    decoder:load_state_dict(state_of(shapes))
    expect(decoder(cosines(0, 2, 1, 4), cosines(1, 3, 1, 4)):flatten()):to_be_close({ -0.6920015, -1.0215461, 0.8916639,
      1.8491965, -0.7355819, -0.9872981, 0.9620528, 1.8452131 }, 1e-6)
  end)
end)

describe("a subsequent mask", function()
  it("hides what is behind", function()
    local model = nn.Transformer(8, 2, { dim_feedforward = 16, dropout = 0 })
    local mask = model:generate_square_subsequent_mask(4)
    expect(mask:isinf()):to_equal_bits(gb.ones(4, 4):triu(1):bool())
    expect(mask:tril():abs():sum():item()):to_be(0.0)
    local src, tgt = gb.randn(5, 2, 8), gb.randn(4, 2, 8)
    local y = model(src, tgt, { tgt_mask = mask })
    tgt[4] = 0
    expect(model(src, tgt, { tgt_mask = mask }):narrow(1, 1, 3)):to_be_close(y:narrow(1, 1, 3), 1e-5)
    expect(function() nn.Transformer.generate_square_subsequent_mask(4) end):to_fail("called with a colon")
  end)
end)

describe("rotary embeddings", function()
  it("turn pairs of features: lengths stay, and products hang on distances alone", function()
    local angle = gb.arange(6, { dtype = "float64" }):unsqueeze(2) * gb.tensor({ 1.0, 0.1 }, { dtype = "float64" })
    local cos, sin = angle:cos(), angle:sin()
    local x, y = gb.randn(4, { dtype = "float64" }):expand({ 6, 4 }),
      gb.randn(4, { dtype = "float64" }):expand({ 6, 4 })
    for _, interleaved in ipairs { false, true } do
      local a = F.rotary_embedding(x, cos, sin, { interleaved = interleaved })
      local b = F.rotary_embedding(y, cos, sin, { interleaved = interleaved })
      expect(a:square():sum(-1)):to_be_close(x:square():sum(-1), 1e-12)
      local products = a:matmul(b:t())
      expect(products:select(1, 1):narrow(1, 2, 3)):to_be_close(products:select(1, 3):narrow(1, 4, 3), 1e-12)
    end
  end)
  it("round once, to the dtype of x", function()
    local x, angle = gb.randn(3, 4):to("bfloat16"), gb.rand(3, 2)
    local y = F.rotary_embedding(x, angle:cos(), angle:sin())
    expect(y):to_equal_bits(F.rotary_embedding(x:to("float32"), angle:cos(), angle:sin()):to("bfloat16"))
  end)
  it("say what does not fit", function()
    local x = gb.rand(2, 5, 4)
    expect(function() F.rotary_embedding(x, gb.rand(5, 2), gb.rand(5, 1)) end):to_fail("must have one shape")
    expect(function() F.rotary_embedding(x, gb.rand(5, 4), gb.rand(5, 4)) end):to_fail("half as many angles")
    expect(function() F.rotary_embedding(x, gb.rand(3, 2), gb.rand(3, 2)) end):to_fail("does not broadcast")
    expect(function() F.rotary_embedding(x, gb.rand(3, 2, 5, 2), gb.rand(3, 2, 5, 2)) end):to_fail("does not broadcast")
  end)
end)

describe("blocks", function()
  it("TransformerBlock: what its parts give", function()
    for _, norm_first in ipairs { true, false } do
      local block, x = nn.TransformerBlock(8, 2, { norm_first = norm_first, is_causal = true }), gb.randn(2, 5, 8)
      local a = block.attention
      local function attend(y)
        local function heads(t) return t:view(2, 5, 2, 4):transpose(2, 3) end
        local q, k, v = table.unpack(a.qkv(y):chunk(3, -1))
        local z = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), nil, { is_causal = true })
        return a.proj(z:transpose(2, 3):reshape(2, 5, 8))
      end
      local want
      if norm_first then
        want = x + attend(block.norm1(x))
        want = want + block.mlp(block.norm2(want))
      else
        want = block.norm1(x + attend(x))
        want = block.norm2(want + block.mlp(want))
      end
      expect(block(x)):to_be_close(want, 1e-6)
    end
  end)
  it("TransformerBlock: a window is a mask of what is near, in groups of heads too", function()
    local block, x = nn.TransformerBlock(8, 4, { window = 2, kv_heads = 2 }), gb.randn(2, 5, 8)
    local whole = nn.TransformerBlock(8, 4, { kv_heads = 2 })
    whole:load_state_dict(block:state_dict())
    local i = gb.arange(5)
    expect(block(x)):to_be_close(whole(x, (i:unsqueeze(2) - i):abs():lt(2)), 1e-6)
  end)
  it("TransformerBlock: hooks may keep what they see", function()
    local block, kept = nn.TransformerBlock(8, 2, { is_causal = true }), {}
    for _, name in ipairs { "norm1", "attention", "mlp" } do
      block[name]:register_forward_hook(function(_, _, y) kept[name] = y end)
    end
    local x = gb.randn(2, 5, 8)
    block(x)
    expect(kept.norm1):to_be_close(block.norm1(x), 1e-6)
    expect(kept.attention):to_be_close(block.attention(kept.norm1), 1e-6)
    expect(kept.mlp):to_have_shape(2, 5, 8)
  end)
  it("TransformerBlock: groups share keys and values, rotary knows distances, swiglu is gated", function()
    local block = nn.TransformerBlock(16, 4, { kv_heads = 2, norm = "rms", mlp = "swiglu", rotary = true, bias = false,
      is_causal = true })
    local names = {}
    for name in block:named_parameters() do names[#names + 1] = name end
    expect(table.concat(names, " ")):to_be("norm1.weight attention.q_proj.weight attention.k_proj.weight \z
      attention.v_proj.weight attention.o_proj.weight norm2.weight mlp.gate_proj.weight mlp.up_proj.weight \z
      mlp.down_proj.weight")
    expect(block.attention.k_proj.weight):to_have_shape(8, 16)
    expect(block.mlp.up_proj.weight):to_have_shape(48, 16)
    local x = gb.randn(2, 5, 16):requires_grad_()
    local y = block(x)
    y:sum():backward()
    expect(block(x, nil, { start = 7 })):to_be_close(y, 1e-5) -- attention sees distances, and they are the same
    expect(y:narrow(2, 1, 3)):to_be_close(block(x:narrow(2, 1, 3)), 1e-5)
    local gate = block.mlp
    local z = gb.randn(3, 16)
    expect(gate(z)):to_be_close(gate.down_proj(F.silu(z:matmul(gate.gate_proj.weight:t())) * gate.up_proj(z)), 1e-5)
  end)
  it("TransformerBlock: under autocast and in training", function()
    local block, x = nn.TransformerBlock(16, 4, { rotary = true, dropout = 0.1, drop_path = 0.5 }), gb.randn(2, 5, 16)
    local y = gb.amp.autocast("bfloat16", block, x)
    expect(y.dtype):to_be("float32")
    block:eval()
    expect(block(x)):to_equal_bits(block(x))
  end)
  it("StochasticDepth keeps or drops each sample whole", function()
    local layer, x = nn.StochasticDepth(0.25), gb.ones(400, 3)
    local y = layer(x)
    local first = y:select(2, 1)
    expect(y):to_equal_bits((first:unsqueeze(2):expand({ 400, 3 }) + 0))
    expect(first:gt(0):sum():item() / 400):to_be_near(0.75, 0.08)
    expect(first:max():item()):to_be_near(4 / 3, 1e-6)
    local batch = nn.StochasticDepth(0.5, "batch")(x)
    expect(batch:max():item()):to_be(batch:min():item())
    layer:eval()
    expect(layer(x)):to_equal_bits(x)
    expect(function() nn.StochasticDepth(-0.1) end):to_fail("p lies between 0 and 1")
  end)
  it("SqueezeExcite scales channels by what their means say", function()
    local layer, x = nn.SqueezeExcite(4, 2, { scale_activation = "hardsigmoid" }), gb.randn(2, 4, 3, 3)
    local means = x:mean({ 3, 4 })
    local h = F.relu(F.linear(means, layer.fc1.weight:view(2, 4), layer.fc1.bias))
    local scale = (F.linear(h, layer.fc2.weight:view(4, 2), layer.fc2.bias) / 6 + 0.5):clamp(0, 1)
    expect(layer(x)):to_be_close(x * scale:view(2, 4, 1, 1), 1e-6)
  end)
  it("PatchEmbed projects patches", function()
    local layer, x = nn.PatchEmbed(3, 5, 2), gb.randn(2, 3, 4, 6)
    local y = layer(x)
    expect(y):to_have_shape(2, 6, 5)
    local patch = x:narrow(3, 3, 2):narrow(4, 1, 2):reshape(2, 12) -- the first of the second row
    expect(y:select(2, 4)):to_be_close(F.linear(patch, layer.proj.weight:reshape(5, 12), layer.proj.bias), 1e-5)
    expect(function() layer(gb.rand(2, 3, 5, 6)) end):to_fail("whole patches of 2 x 2, got [2, 3, 5, 6]")
  end)
  it("say what does not fit", function()
    expect(function() nn.TransformerBlock(8, 3) end):to_fail("3 heads do not divide the size 8")
    expect(function() nn.TransformerBlock(8, 4, { kv_heads = 3 }) end):to_fail("3 heads of keys and values")
    expect(function() nn.TransformerBlock(6, 2, { rotary = true }) end):to_fail("even number of features per head")
    expect(function() nn.TransformerBlock(8, 2)(gb.rand(2, 8)) end):to_fail("got 2 dimensions")
  end)
end)

gb.test.finish()

-- test_numbers.lua - the decisions of docs/numbers.md, row by row; and that a Lua integer keeps all its bits on every
-- way into a tensor.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F, nn, optim, amp = gb.nn.functional, gb.nn, gb.optim, gb.amp

local NAN = 0 / 0
local BIG = (1 << 53) + 1

local function f64(list) return gb.tensor(list, { dtype = "float64" }) end

-- The gradient of the sum of f(x).
local function slope(f, list, dtype)
  local x = gb.tensor(list, { dtype = dtype or "float64" }):requires_grad_()
  return gb.grad(f(x):sum(), x)
end

local function expect_elements(t, list)
  local got = t:reshape(-1):tolist()
  expect(#got):to_be(#list)
  for i, v in ipairs(list) do
    if v ~= v then expect(got[i] ~= got[i]):to_be(true)
    else expect(got[i]):to_be(v) end
  end
end

describe("an integer beyond 2^53", function()
  local function zeros() return gb.zeros(3, { dtype = "int64" }) end
  local ways = {
    full = function() return gb.full({ 3 }, BIG) end,
    full_like = function() return gb.full_like(zeros(), BIG) end,
    new_full = function() return zeros():new_full({ 3 }, BIG) end,
    fill_ = function() return zeros():fill_(BIG) end,
    ["t[range] = n"] = function() local t = zeros() t[{ {} }] = BIG return t end,
    ["t[i] = n"] = function() local t = zeros() for i = 1, 3 do t[i] = BIG end return t end,
    ["t[mask] = n"] = function() local t = zeros() t[gb.ones(3, { dtype = "bool" })] = BIG return t end,
    ["t[mask of two dims] = n"] = function()
      local t = gb.zeros(1, 3, { dtype = "int64" })
      t[gb.ones(1, 3, { dtype = "bool" })] = BIG
      return t:reshape(-1)
    end,
    ["t[index] = n"] = function() local t = zeros() t[gb.tensor { 0, 1, 2 }] = BIG return t end,
    masked_fill = function() return zeros():masked_fill(gb.ones(3, { dtype = "bool" }), BIG) end,
    where = function() return gb.where(gb.zeros(3, { dtype = "bool" }), zeros(), BIG) end,
    ["clamp, below"] = function() return zeros():clamp(BIG) end,
    ["clamp, above"] = function() return gb.full({ 3 }, math.maxinteger):clamp(nil, BIG) end,
    ["clamp of one that is it"] = function() return gb.full({ 3 }, BIG):clamp(-BIG, BIG) end,
    ["addcmul's value"] = function() return gb.addcmul(zeros(), zeros() + 1, zeros() + 1, { value = BIG }) end,
    ["arange, all of one step"] = function() return gb.arange(BIG, BIG + 1):repeat_interleave(3) end,
    add = function() return zeros() + BIG end,
  }
  for name, way in pairs(ways) do
    it("keeps its bits: " .. name, function() expect_elements(way(), { BIG, BIG, BIG }) end)
  end
  it("keeps its bits: arange, up and down, to the ends of int64", function()
    expect_elements(gb.arange(BIG, BIG + 3), { BIG, BIG + 1, BIG + 2 })
    expect_elements(gb.arange(BIG + 3, BIG - 2, -2), { BIG + 3, BIG + 1, BIG - 1 })
    expect_elements(gb.arange(math.maxinteger - 2, math.maxinteger), { math.maxinteger - 2, math.maxinteger - 1 })
    expect_elements(gb.arange(math.mininteger, math.maxinteger, math.maxinteger),
      { math.mininteger, -1, math.maxinteger - 1 })
  end)
  it("is compared by all its bits", function()
    expect_elements(gb.tensor({ BIG, BIG - 1 }):eq(BIG), { true, false })
    expect_elements(gb.tensor({ BIG, BIG - 1 }):lt(BIG), { false, true })
  end)
end)

describe("a number beyond the range of an integer dtype", function()
  local x = gb.tensor({ 1, 2, 200 }, { dtype = "uint8" })
  it("is no bound where it does not bind", function()
    expect_elements(x:clamp(-1, 300), { 1, 2, 200 })
    expect_elements(gb.maximum(x, -5), { 1, 2, 200 })
    expect_elements(gb.minimum(x, 300), { 1, 2, 200 })
    expect_elements(gb.tensor({ 5 }, { dtype = "int32" }):clamp(-2 ^ 40 // 1 | 0, 1 << 40), { 5 })
  end)
  it("is an error where it does, or would be stored", function()
    local m = x:gt(1)
    expect(function() x:clamp(300) end):to_fail("min is 300, which uint8 does not hold")
    expect(function() gb.maximum(x, 300) end):to_fail("y is 300")
    expect(function() x:masked_fill(m, 300) end):to_fail("the value 300 does not fit into uint8")
    expect(function() gb.where(m, x, 300) end):to_fail("the value 300 does not fit into uint8")
    expect(function() x:clone()[1] = 300 end):to_fail("the value 300 does not fit into uint8")
    expect(function() x:clone()[m] = 300 end):to_fail("the value 300 does not fit into uint8")
    expect(function() gb.minimum(x, -5) end):to_fail("y is -5")
    expect(function() x:clamp(nil, -5) end):to_fail("max is -5, which uint8 does not hold")
    expect(function() x:clone()[gb.tensor { 0 }] = 300 end):to_fail("the value 300 does not fit into uint8")
    expect(function() gb.arange(0, 301, 100, { dtype = "uint8" }) end):to_fail("the value 300 does not fit into uint8")
    expect(function() gb.zeros(1, { dtype = "int32" }):clamp(1 << 40) end):to_fail("int32")
  end)
  it("counts down from 0 where it is stored in an unsigned tensor, as in PyTorch", function()
    expect_elements(x:masked_fill(x:gt(1), -1), { 1, 255, 255 })
    expect_elements(gb.full({ 1 }, -1, { dtype = "uint8" }), { 255 })
  end)
end)

describe("a number beside the bounds of its row", function()
  local x = gb.ones(2, 3)
  for text, call in pairs {
    ["dropout: 'p' is 1.5, it must be at least 0 and at most 1"] = function() F.dropout(x, 1.5) end,
    ["dropout: 'p' is -0.5, it must be at least 0"] = function() F.dropout(x, -0.5, false) end,
    ["it must be at least 0 and at most 1"] = function() F.dropout(x, NAN) end,
    ["'std' is -1, it must be at least 0"] = function() x:normal_(0, -1) end,
    ["multinomial: 'samples' is 0, it must be at least 1"] = function() gb.multinomial(x, 0) end,
    ["layer_norm: 'eps' is -1, it must be at least 0"] = function() F.layer_norm(x, 3, { eps = -1 }) end,
    ["rms_norm: 'eps' is -1, it must be at least 0"] = function() F.rms_norm(x, 3, { eps = -1 }) end,
    ["batch_norm: 'eps' is -1, it must be at least 0"] = function() F.batch_norm(x, { training = true, eps = -1 }) end,
    ["add_layer_norm: 'eps' is -1, it must be at least 0"] = function() F.add_layer_norm(x, x, 3, { eps = -1 }) end,
  } do
    it("is an error: " .. text, function() expect(call):to_fail(text) end)
  end
  it("may be a bound itself", function()
    expect(F.dropout(x, 1):sum():item()):to_be(0)
    expect(F.dropout(x, 0):sum():item()):to_be(6)
    expect(F.rms_norm(x, 3, { eps = 0 }):sum():item()):to_be(6)
    expect(gb.multinomial(x, 1):numel()):to_be(2)
  end)
end)

describe("integers that give floats", function()
  local x = gb.tensor({ 1, 2, 200 }, { dtype = "uint8" })
  it("are divided as floats, whatever the dtype of a 0-d divisor", function()
    local total = x:sum()
    expect(x / total):to_be_close({ 1 / 203, 2 / 203, 200 / 203 })
    expect(gb.atan2(x, total)):to_be_close({ math.atan(1, 203), math.atan(2, 203), math.atan(200, 203) })
    expect((x / total).dtype):to_be("float32")
  end)
  it("meet a fraction uncut", function()
    expect_elements(x:clamp(0.5, 2.5), { 1, 2, 2.5 })
    expect_elements(gb.addcmul(x, x, x, { value = 0.5 }), { 1.5, 4, 20200 })
  end)
  it("stay integers beside an integer bound, and become floats beside a float, as in PyTorch", function()
    expect(x:clamp(0, 2).dtype):to_be("uint8")
    expect(x:clamp(0, 2.0).dtype):to_be("float32")
    expect(x:clamp(0, math.huge).dtype):to_be("float32")
  end)
end)

describe("float64 gradients", function()
  local function near(a, b) expect(math.abs(a:item() - b) <= 1e-14 * math.abs(b)):to_be(true) end
  it("are float64's beside a number", function()
    near(slope(function(x) return x ^ 2.3 end, { 1.7 }), 2.3 * 1.7 ^ 1.3)
    near(slope(function(x) return 0.3 ^ x end, { 1.7 }), 0.3 ^ 1.7 * math.log(0.3))
    near(slope(function(x) return x:lerp(f64 { 2 }, 0.3) end, { 1.7 }), 0.7)
    near(slope(function(x) return gb.atan2(x, 0.3) end, { 1.7 }), 0.3 / (1.7 ^ 2 + 0.3 ^ 2))
    near(slope(function(x) return gb.atan2(0.3, x) end, { 1.7 }), -0.3 / (1.7 ^ 2 + 0.3 ^ 2))
  end)
  it("are float64's beside a float16 base, and of a loss beside a float32 probability", function()
    local base = gb.tensor({ 0.3 }, { dtype = "float16" })
    local b = base:item()
    near(slope(function(y) return base ^ y end, { 1.7 }), b ^ 1.7 * math.log(b))
    local p = gb.tensor { 0.3 }
    near(F.binary_cross_entropy(p, f64 { 1 }), -math.log(p:item()))
  end)
end)

describe("NaN", function()
  it("as a bound of clamp leaves nothing else, for integers too", function()
    expect_elements(f64({ -1, 0.5, 2 }):clamp(NAN, 1), { NAN, NAN, NAN })
    expect_elements(f64({ -1, 0.5, 2 }):clamp(0, NAN), { NAN, NAN, NAN })
    expect_elements(gb.tensor({ 1, 2 }):clamp(NAN), { NAN, NAN })
  end)
  it("goes through the gradients of elu and pow", function()
    expect_elements(slope(F.elu, { NAN, 1 }), { NAN, 1 })
    expect_elements(slope(function(x) return gb.zeros(2, { dtype = "float64" }) ^ x end, { NAN, 1 }), { NAN, 0 })
    expect_elements(slope(function(x) return x ^ NAN end, { 2 }), { NAN })
    local y = slope(function(x) return x:reshape(4):var(nil, { correction = NAN }) end, { 1, 2, 4, 8 })
    expect_elements(y, { NAN, NAN, NAN, NAN })
  end)
end)

-- What docs/numbers.md decides.

describe("integers and numbers", function()
  local x = gb.tensor({ 1, 2, 200 }, { dtype = "uint8" })
  it("are cut where one number fills all, and nowhere else", function()
    expect_elements(gb.zeros(1, { dtype = "int64" }):fill_(2.7), { 2 })
    expect_elements(gb.full({ 1 }, 2.7, { dtype = "int64" }), { 2 })
    local t = gb.zeros(2, { dtype = "int64" })
    t[1] = 2.7
    expect_elements(t, { 2, 0 })
    expect(function() t:masked_fill(t:gt(1), 0.5) end):to_fail("0.5 does not fit")
    expect(function() t[gb.tensor { 1 }] = 0.5 end):to_fail("do not fit")
    expect_elements(gb.addcdiv(t, t + 1, t + 2, { value = 2 }), { 2 + 2 * 3 / 4, 1 })
  end)
  it("wrap in arithmetic, and are compared as they are", function()
    expect_elements(x + 300, { 45, 46, 244 })
    expect_elements(x:lt(300), { true, true, true })
    expect_elements(x // 300, { 0, 0, 4 }) -- by 44
    expect_elements(x % 300, { 1, 2, 24 })
    expect_elements(x:lt(gb.tensor(300)), { true, true, false }) -- a tensor is converted: to 44
  end)
end)

describe("NaN at a kink", function()
  it("passes as in PyTorch", function()
    expect_elements(slope(F.relu, { NAN }), { 1 })
    expect_elements(slope(function(x) return F.leaky_relu(x, 0.25) end, { NAN }), { 0.25 })
    expect_elements(slope(function(x) return x:abs() end, { NAN }), { 0 })
  end)
  it("is an error as an option", function()
    local x = gb.rand(2, 4)
    expect(function() F.layer_norm(x, { 4 }, { eps = NAN }) end):to_fail("eps")
    expect(function() x:norm(NAN) end):to_fail("not a number")
    expect(function() F.cross_entropy(x, gb.tensor { 0, 1 }, { label_smoothing = NAN }) end):to_fail("label_smoothing")
  end)
end)

describe("floor_divide", function()
  it("goes by the remainder", function()
    -- 1 / 0.1 is 10 in floats, but ten times the float above 0.1 is more than 1
    for _, dtype in ipairs { "float32", "float64" } do
      local x, y = gb.tensor({ 1, 6, -1, 1 }, { dtype = dtype }), gb.tensor({ 0.1, 0.1, 0.1, -0.1 }, { dtype = dtype })
      local expected = { 9, 59, -10, -10 }
      expect(x // y):to_be_close(expected)
      expect(x:div(y, { rounding_mode = "floor" })):to_be_close(expected)
      expect(x - (x // y) * y):to_be_close(x % y)
    end
  end)
  it("has huge quotients, as PyTorch", function()
    local x = gb.tensor({ 1e30, -1e30, 3e38, 16777217 * 3.0 }, { dtype = "float32" })
    local expected = gb.tensor({ 3.33333338e+29, -3.33333338e+29, 9.99999968e+37, 16777218 })
    expect_elements(x // 3, expected:tolist())
    local wide = gb.tensor({ 1e300, 2.0 ^ 53 + 2 }, { dtype = "float64" })
    expect_elements(wide // 7, { 1.4285714285714286e+299, 1286742750677284 })
  end)
  it("divides integers by a number as their dtype holds it", function()
    local x = gb.tensor({ 10, 200, 7 }, { dtype = "uint8" })
    for _, by in ipairs { -3, 300 } do
      local same = gb.tensor(by % 256, { dtype = "uint8" })
      expect((x // by)):to_be_close((x // same))
      expect((x % by)):to_be_close((x % same))
      expect(x:fmod(by)):to_be_close(x:fmod(same))
      for _, mode in ipairs { "floor", "trunc" } do
        expect(x:div(by, { rounding_mode = mode })):to_be_close(x:div(same, { rounding_mode = mode }))
      end
    end
    expect(x // -3):to_be_close { 0, 0, 0 }
    expect(function()
      local _ = x // 256
      if gb.cuda.is_available() then gb.cuda.synchronize() end
    end):to_fail("256 is 0 in uint8")
  end)
  it("of div has a gradient of 0", function()
    local x = gb.tensor({ 3.0, 0.0, 1.0 }, { requires_grad = true })
    local y = x:div(gb.tensor { 2.0, 0.0, -0.1 }, { rounding_mode = "floor" })
    y:sum():backward()
    expect(y:detach()):to_be_close { 1, 0 / 0, -10 }
    expect(x.grad):to_be_close { 0, 0, 0 }
  end)
  it("is part of no graph", function() expect((gb.ones(1):requires_grad_() // 2).requires_grad):to_be(false) end)
end)

describe("the gradients of activations", function()
  local function slope64(fn, value) return slope(fn, { value }):item() end
  it("are NaN at NaN where there is a curve, and 0 where there is a bound", function()
    for _, name in ipairs { "elu", "selu", "celu" } do expect_elements(slope(F[name], { NAN }), { NAN }) end
    for _, name in ipairs { "relu6", "hardtanh", "softshrink" } do expect_elements(slope(F[name], { NAN }), { 0 }) end
  end)
  it("are float64 throughout", function()
    expect(slope64(F.hardsigmoid, 0.5)):to_be(1 / 6)
    expect(math.abs(slope64(function(x) return F.celu(x, 0.3) end,
      -1.7) / math.exp(-1.7 / 0.3) - 1) < 1e-14):to_be(true)
    expect(math.abs(slope64(gb.digamma, 1) / (math.pi ^ 2 / 6) - 1) < 1e-13):to_be(true)
  end)
end)

describe("the gradient of clamp", function()
  it("is shared at a bound that is a tensor", function()
    local x = gb.tensor({ 1, 2, 3 }, { dtype = "float32", requires_grad = true })
    local low = gb.tensor({ 1, 0, 4 }, { dtype = "float32", requires_grad = true })
    x:clamp(low):sum():backward()
    expect(x.grad):to_be_close(gb.tensor { 0.5, 1, 0 })
    expect(low.grad):to_be_close(gb.tensor { 0.5, 0, 1 })
  end)
  it("is 1 inside its bounds and 0 at them, as in PyTorch 2.15", function()
    expect_elements(slope(function(x) return x:clamp(0, 1) end, { -1, 0, 0.5, 1, 2, NAN }), { 0, 0, 1, 0, 0, 0 })
    expect_elements(slope(function(x) return x:clamp(0) end, { -1, 0, 0.5 }), { 0, 0, 1 })
    expect_elements(slope(function(x) return x:clamp(nil, 1) end, { 0, 1, 2 }), { 1, 0, 0 })
  end)
end)

describe("the gradient of a step", function()
  for _, name in ipairs { "round", "floor", "ceil", "trunc", "sign" } do
    it(name .. " is 0, and the graph goes on", function()
      expect_elements(slope(function(x) return x[name](x) end, { -1.5, 0, 2.25 }), { 0, 0, 0 })
      expect_elements(slope(function(x) return x[name](x) * 3 + x end, { -1.5, 0, 2.25 }), { 1, 1, 1 })
      local x = gb.tensor({ 1.5 }):requires_grad_()
      local once = gb.grad(x[name](x):sum(), x, { create_graph = true })
      expect(gb.grad((once * x):sum(), x)):to_be_close({ 0 })
    end)
  end
end)

describe("binary_cross_entropy at its poles", function()
  for _, dtype in ipairs { "float32", "float64" } do
    local function at(x, target)
      local y = gb.tensor({ target }, { dtype = dtype })
      local loss = F.binary_cross_entropy(gb.tensor({ x }, { dtype = dtype }), y):item()
      return loss, slope(function(p) return F.binary_cross_entropy(p, y) end, { x }, dtype):item()
    end
    it("costs 100 and pulls with 1e12 where a certain prediction is wrong, in " .. dtype, function()
      for _, case in ipairs { { 0, 1, 100, -1e12 }, { 1, 0, 100, 1e12 }, { 0, 0.5, 50, -5e11 } } do
        local loss, pull = at(case[1], case[2])
        expect(loss):to_be_near(case[3], 1e-6)
        expect(pull / case[4]):to_be_near(1, 1e-6)
      end
      local loss, pull = at(1e-20, 1)
      expect(loss):to_be_near(-math.log(1e-20), 1e-6)
      expect(pull / -1e12):to_be_near(1, 1e-6)
    end)
    it("has its own slope where a certain prediction is right, in " .. dtype, function()
      for _, case in ipairs { { 0, 1 }, { 1, -1 } } do
        local loss, pull = at(case[1], case[1])
        expect(loss):to_be(0.0)
        expect(pull):to_be(case[2] + 0.0)
      end
    end)
  end
end)

describe("binary_cross_entropy of what is no probability", function()
  it("is NaN", function()
    for _, x in ipairs { -0.1, 1.1, NAN } do
      expect_elements(F.binary_cross_entropy(f64 { x }, f64 { 0.5 }):reshape(1), { NAN })
    end
  end)
end)

describe("clip_grad_norm_ of a norm that is not finite", function()
  local function leaf(list)
    local p = nn.Parameter(gb.zeros(#list))
    p.grad = gb.tensor(list, { dtype = "float32" })
    return p
  end
  local clip = nn.utils.clip_grad_norm_
  it("multiplies by 0 or NaN without a scaler, as PyTorch: no step goes unclipped", function()
    for _, adopted in ipairs { false, true } do
      for _, case in ipairs { { { math.huge, 1, 2 }, { NAN, 0, 0 } }, { { NAN, 1, 2 }, { NAN, NAN, NAN } },
        { { 1e300, 1, 1 }, { NAN, 0, 0 } } } do
        local p = leaf { 0, 0, 0 }
        if adopted then optim.SGD({ p }, { lr = 0.1 }) end
        p.grad = gb.tensor(case[1], { dtype = "float32" })
        clip({ p }, 1)
        expect_elements(p.grad, case[2])
      end
    end
  end)
  it("is an error where that is asked for, and nothing is changed", function()
    local p = leaf { math.huge, 1, 2 }
    expect(function() clip({ p }, 1, 2, true) end):to_fail("the norm of the gradients is inf")
    expect_elements(p.grad, { math.huge, 1, 2 })
    expect(function() clip({ p }, 1, 2, 1) end):to_fail("error_if_nonfinite")
    p.grad = gb.tensor { 3.0, 0, 4 }
    clip({ p }, 1, 2, true)
    expect(p.grad):to_be_close({ 0.6, 0, 0.8 })
  end)
  it("leaves gradients to the scaler's report where it skips the step", function()
    local p = leaf { 0, 0, 0 }
    local opt, scaler = optim.SGD({ p }, { lr = 0.1 }), amp.GradScaler { init_scale = 64 }
    opt:zero_grad()
    scaler:scale((p * gb.tensor { math.huge, 1, 2 }):sum()):backward()
    scaler:unscale_(opt)
    clip({ p }, 1)
    expect_elements(p.grad, { math.huge, 1, 2 })
    scaler:step(opt)
    scaler:update()
    expect(scaler:stats().skipped):to_be(1)
    expect_elements(p:detach(), { 0, 0, 0 })
  end)
  it("is what a step that clips by itself does", function()
    local p = leaf { 0, 0, 0 }
    local opt, scaler = optim.SGD({ p }, { lr = 1 }), amp.GradScaler { enabled = false }
    p.grad = gb.tensor { math.huge, 1, 2 }
    scaler:step(opt, { clip = 1 })
    expect_elements(p:detach(), { NAN, 0, 0 })
  end)
end)

describe("float64 and float32 in one product", function()
  it("are promoted; PyTorch refuses them", function()
    local a, b = gb.full({ 2, 2 }, 0.1, { dtype = "float64" }), gb.full({ 2, 2 }, 0.5)
    local y = a:matmul(b)
    expect(y.dtype):to_be("float64")
    expect_elements(y, { 0.1, 0.1, 0.1, 0.1 })
    expect(F.linear(a, b).dtype):to_be("float64")
    expect(function() F.conv2d(gb.ones(1, 1, 2, 2), gb.ones(1, 1, 1, 1, { dtype = "float64" })) end):to_fail("float64")
  end)
end)

describe("the scale of a GradScaler", function()
  it("does not fall below min_scale; PyTorch's goes to 0", function()
    local p = nn.Parameter(gb.zeros(1))
    local opt, scaler = optim.SGD({ p }, { lr = 0.1 }), amp.GradScaler { init_scale = 2 ^ -13 }
    for _ = 1, 3 do
      opt:zero_grad()
      scaler:scale((p * math.huge):sum()):backward()
      scaler:step(opt)
      scaler:update()
    end
    expect(scaler:get_scale()):to_be(2.0 ^ -14)
  end)
end)

describe("layer_norm of a constant row", function()
  it("is its bias, within the rounding of the mean", function()
    for _, case in ipairs { { 0.1, 3 }, { 1 / 3, 7 }, { 3.3e-5, 64 }, { 1e8, 64 }, { 1000.1, 1000 } } do
      local y = F.layer_norm(gb.full({ 1, case[2] }, case[1]), { case[2] })
      expect(y:abs():max():item() <= 8 * case[1] * 2 ^ -23 / math.sqrt(1e-5)):to_be(true)
    end
  end)
end)

describe("linear with gelu or silu", function()
  -- The second derivatives of the fused layer, against those of the same layer out of ops.
  local kinds = {
    gelu = function(z) return z * 0.5 * ((z * math.sqrt(0.5)):erf() + 1) end,
    gelu_tanh = function(z) return z * 0.5 * (((z + z ^ 3 * 0.044715) * math.sqrt(2 / math.pi)):tanh() + 1) end,
    silu = function(z) return z * z:sigmoid() end,
  }
  for name, plain in pairs(kinds) do
    it(name .. " is differentiable twice, by every operand, and once more", function()
      gb.manual_seed(5)
      local x, w, b = gb.randn(3, 4, { dtype = "float64" }), gb.randn(5, 4, { dtype = "float64" }),
        gb.randn(5, { dtype = "float64" })
      local leaves = { x:requires_grad_(), w:requires_grad_(), b:requires_grad_() }
      local function derivatives(y)
        local first = gb.grad(y:square():sum(), leaves, { create_graph = true })
        local second = gb.grad(first[1]:square():sum() + first[2]:square():sum() + first[3]:square():sum(), leaves,
          { create_graph = true })
        local third = gb.grad(second[1]:square():sum() + second[2]:square():sum() + second[3]:square():sum(), leaves)
        return { first[1], first[2], first[3], second[1], second[2], second[3], third[1], third[2], third[3] }
      end
      local fused, by_hand = derivatives(F.linear(x, w, b, { activation = name })),
        derivatives(plain(x:matmul(w:t()) + b))
      for i, g in ipairs(fused) do
        local scale = by_hand[i]:abs():max():item()
        expect((g - by_hand[i]):abs():max():item() <= 1e-12 * scale):to_be(true)
      end
    end)
  end
  it("has them where only one operand is a leaf", function()
    local x, w = gb.randn(3, 4, { dtype = "float64" }), gb.randn(5, 4, { dtype = "float64" }):requires_grad_()
    local first = gb.grad(F.linear(x, w, nil, { activation = "gelu" }):sum(), w, { create_graph = true })
    expect(gb.grad(first:square():sum(), w):isfinite():all():item()):to_be(true)
  end)
end)

describe("an activation beside a product", function()
  local alone = { relu = F.relu, gelu = F.gelu, silu = F.silu, tanh = F.tanh, sigmoid = F.sigmoid,
                  gelu_tanh = function(x) return F.gelu(x, { approximate = "tanh" }) end }
  for name, fn in pairs(alone) do
    for _, dtype in ipairs { "float64", "float32" } do
      it(name .. " gives the bits that it gives alone, in " .. dtype, function()
        gb.manual_seed(3)
        local x, w, b = gb.randn(70, 33, { dtype = dtype }), gb.randn(90, 33, { dtype = dtype }),
          gb.randn(90, { dtype = dtype })
        expect(F.linear(x, w, b, { activation = name }):eq(fn(F.linear(x, w, b))):all():item()):to_be(true)
      end)
    end
  end
end)

gb.test.finish()

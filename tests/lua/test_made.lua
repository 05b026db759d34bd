-- test_made.lua - functions and layers that are made of ops, against PyTorch (tests/golden/made.py): results and
-- gradients in float64, results in float32 and under autocast; what is drawn by its moments; and what they turn down.

local gb = require "gibbous"
local goldens = dofile("tests/lua/goldens.lua")
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, L = gb.nn, gb.linalg
local F = nn.functional
local here = { device = gb.get_default_device() }
local lapack = pcall(L.inv, gb.eye(2, { device = "cpu" }))

-- {==== goldens ====

local function call_of(line)
  return assert(load("return function(gb, F, nn, L, a, b, c, d) return " .. line.lua .. " end"))()
end

-- Values and shape agree; the tolerance is in spacings of the dtype at the largest element, or 1.
local function same(what, got, text, growth, spacing)
  local want = goldens.tensor(text):to(here.device)
  expect(table.concat(got.shape, "x")):to_be(table.concat(want.shape, "x"))
  if want:numel() == 0 then return end
  if not want:is_floating_point() then
    expect(got):to_be_close(want, 0)
    return
  end
  local scale = math.max(1, want:double():abs():amax():item())
  local off = (got:detach():double() - want:double()):abs():amax():item()
  if not (off <= growth * spacing * scale) then error(("%s is off by %g of %g"):format(what, off, scale), 0) end
end

local function inputs_of(line, dtype)
  local inputs = {}
  for i = 1, line.inputs do
    inputs[i] = goldens.tensor(line.tensors["in" .. i - 1]):to(here.device)
    if inputs[i]:is_floating_point() then inputs[i] = inputs[i]:to(dtype) end
  end
  return inputs
end

local function run(line, inputs) return { call_of(line)(gb, F, nn, L, table.unpack(inputs, 1, 4)) } end

local lines = {}
for _, line in ipairs(goldens.read("made", { "made" })) do
  if lapack or not line.lua:find("%f[%w]L%.") then lines[#lines + 1] = line end
end

describe("goldens in float64", function()
  for _, line in ipairs(lines) do
    it(line.name, function()
      local inputs = inputs_of(line, "float64")
      for _, i in ipairs(line.grad) do inputs[i + 1]:requires_grad_() end
      local outputs = run(line, inputs)
      for i = 1, line.outputs do
        same("output " .. i, outputs[i], line.tensors["out" .. i - 1], line.growth, 2 ^ -52)
      end
      if #line.grad == 0 then return end
      local graded, ups, wanted = {}, {}, {}
      for k, i in ipairs(line.graded) do
        graded[k], ups[k] = outputs[i + 1], goldens.tensor(line.tensors["up" .. i]):to(here.device)
      end
      for k, i in ipairs(line.grad) do wanted[k] = inputs[i + 1] end
      local grads = gb.grad(graded, wanted, { grad_outputs = ups })
      for k, i in ipairs(line.grad) do
        same("gradient " .. i, grads[k], line.tensors["grad" .. i], 4 * line.growth, 2 ^ -52)
      end
    end)
  end
end)

-- 1e-310 and 5e-324 are no float32s; modules are made float64 by their lines, and 16-bit eigenvalues are nothing.
local float64_only = { frexp = true }
describe("goldens in float32", function()
  for _, line in ipairs(lines) do
    if not float64_only[line.name] and not line.lua:find(":double()", 1, true) then
      it(line.name, function()
        local outputs = run(line, inputs_of(line, "float32"))
        for i = 1, line.outputs do
          same("output " .. i, outputs[i], line.tensors["out" .. i - 1], line.growth, 2 ^ -23)
        end
      end)
    end
  end
end)

-- Nothing here but products is in autocast's lists of 16 bits, and 16-bit inputs are not given.
describe("goldens under autocast", function()
  for _, line in ipairs(lines) do
    if not float64_only[line.name] and not line.lua:find(":double()", 1, true) and not goldens.multiplies(line) then
      it(line.name .. " has the bits of float32", function()
        local plain, scoped = run(line, inputs_of(line, "float32")), nil
        gb.amp.autocast("bfloat16", function() scoped = run(line, inputs_of(line, "float32")) end)
        for i = 1, line.outputs do expect(scoped[i]:equal(plain[i])):to_be(true) end
      end)
    end
  end
end)

-- ====}

-- {==== draws ====

-- Mean and variance of draws lie within five deviations of their estimates.
local function has_moments(y, mean, variance, fourth)
  local n = y:numel()
  expect(math.abs(y:double():mean():item() - mean) < 5 * math.sqrt(variance / n)):to_be(true)
  expect(math.abs(y:double():var():item() - variance) < 5 * math.sqrt((fourth - variance ^ 2) / n)):to_be(true)
end

describe("draws of counts", function()
  it("poisson has its rate for mean and variance", function()
    gb.manual_seed(3)
    for _, rate in ipairs { 0.3, 4, 9.9, 10, 60, 5000 } do
      local y = gb.poisson(gb.full({ 4000 }, rate + 0.0))
      has_moments(y, rate, rate, rate + 3 * rate ^ 2)
      expect(y:eq(y:floor()):all():item()):to_be(true)
      expect(y:ge(0):all():item()):to_be(true)
    end
    expect(gb.poisson(gb.zeros(4)):sum():item()):to_be(0)
    expect(gb.poisson(gb.ones(2, 0, { dtype = "float64" })).dtype):to_be("float64")
    local low = gb.poisson(gb.tensor({ 0.5, 20, 0, 100 }, { dtype = "bfloat16" }))
    expect(low.dtype):to_be("bfloat16")
    expect(low[3]:item()):to_be(0)
  end)
  it("binomial has its mean and variance", function()
    gb.manual_seed(4)
    for _, case in ipairs { { 5, 0.3 }, { 40, 0.1 }, { 50, 0.5 }, { 200, 0.9 }, { 1000, 0.02 }, { 3, 0.999 } } do
      local n, p = case[1], case[2]
      local y = gb.binomial(gb.full({ 4000 }, n + 0.0), gb.tensor(p))
      local variance = n * p * (1 - p)
      has_moments(y, n * p, variance, variance * (1 + 3 * (n - 2) * p * (1 - p)))
      expect(y:ge(0):logical_and(y:le(n)):all():item()):to_be(true)
    end
    expect(gb.binomial(gb.tensor({ 7.0, 7, 0 }), gb.tensor({ 0.0, 1, 0.5 })):tolist()[2]):to_be(7)
    expect(gb.binomial(gb.tensor({ 7.0 }), gb.tensor({ 0.0 })):item()):to_be(0)
  end)
  it("bernoulli takes one p for a tensor of any dtype", function()
    gb.manual_seed(5)
    local y = gb.zeros(100, 100, { dtype = "int32" }):bernoulli(0.25)
    expect(y.dtype):to_be("int32")
    expect(math.abs(y:sum():item() - 2500) < 5 * math.sqrt(10000 * 0.25 * 0.75)):to_be(true)
    expect(gb.bernoulli(gb.ones(3, 2), 1):sum():item()):to_be(6)
    expect(function() gb.ones(2):bernoulli(1.5) end):to_fail("p")
  end)
  it("say what they turn down", function()
    expect(function() gb.poisson(gb.tensor({ 1, 2 })) end):to_fail("the rates are int64")
    expect(function() gb.poisson(gb.tensor({ 1.0, -2 })) end):to_fail("below 0 or not finite")
    expect(function() gb.poisson(gb.tensor({ 0 / 0 })) end):to_fail("below 0 or not finite")
    expect(function() gb.poisson(gb.tensor({ math.huge })) end):to_fail("below 0 or not finite")
    expect(function() gb.binomial(gb.tensor({ 1.5 }), gb.tensor({ 0.5 })) end):to_fail("no whole number")
    expect(function() gb.binomial(gb.tensor({ -1.0 }), gb.tensor({ 0.5 })) end):to_fail("below 0")
    expect(function() gb.binomial(gb.tensor({ 1.0 }), gb.tensor({ 1.5 })) end):to_fail("outside of 0 .. 1")
    expect(function() gb.binomial(gb.tensor({ 1.0 }), gb.tensor({ 0 / 0 })) end):to_fail("outside of 0 .. 1")
    expect(function() gb.binomial(gb.ones(2), gb.ones(3) / 2) end):to_fail("do not fit")
  end)
  it("rrelu draws slopes in training", function()
    gb.manual_seed(6)
    local layer, x = nn.RReLU(0.2, 0.4), gb.full({ 4000 }, -1.0):requires_grad_()
    local y = layer(x)
    expect(y:ge(-0.4):logical_and(y:le(-0.2)):all():item()):to_be(true)
    expect(math.abs(y:mean():item() + 0.3) < 5 * 0.2 / math.sqrt(12 * 4000)):to_be(true)
    y:sum():backward()
    expect(x.grad):to_be_close(-y, 1e-6)
    layer:eval()
    expect(layer(gb.tensor({ -1.0, 2 }))):to_be_close({ -0.3, 2 })
    expect(gb.rrelu(gb.tensor({ -math.huge, 0 / 0, math.huge }))):to_be_close({ -math.huge, 0 / 0, math.huge })
    expect(function() F.rrelu(x, 0.5, 0.2) end):to_fail("lower is 0.5 and upper 0.2")
  end)
  it("fractional pooling draws places that a seed repeats", function()
    local x = gb.randn({ 1, 2, 9, 9 })
    local maps = gb.randn(2, 3, 4, 6, 5)
    expect(nn.LPPool3d(2, 3, { stride = 2 })(maps)):to_be_close(F.lp_pool3d(maps, 2, 3, { stride = 2 }), 0)
    local pool = nn.FractionalMaxPool2d(3, { output_ratio = { 0.5, 0.7 } })
    gb.manual_seed(1)
    local y = pool(x)
    expect(y):to_have_shape(1, 2, 4, 6)
    gb.manual_seed(1)
    expect(pool(x)):to_equal_bits(y)
    expect(nn.FractionalMaxPool3d(2, { output_size = 3 })(gb.rand(2, 6, 6, 6))):to_have_shape(2, 3, 3, 3)
    expect(nn.FractionalMaxPool2d(2, { output_size = 3 })(gb.full({ 1, 1, 6, 6 }, 0 / 0))[1][1][1][1]:isnan():item())
      :to_be(true)
  end)
end)

-- ====}

-- {==== linear algebra ====

if lapack then
  describe("lu", function()
    local function rand(...) return gb.randn({ ... }, { dtype = "float64", device = here.device }) end
    it("makes its matrix again, whatever the shape", function()
      gb.manual_seed(2)
      for _, shape in ipairs { { 70, 70 }, { 33, 80 }, { 90, 40 }, { 2, 3, 5, 5 }, { 0, 0 }, { 2, 0, 3 }, { 1, 1 },
        { 0, 4, 4 } } do
        local A = rand(table.unpack(shape))
        local P, Lo, U = L.lu(A)
        expect(P:matmul(Lo):matmul(U)):to_be_close(A, 1e-12)
        expect(Lo:abs():le(1):all():item()):to_be(true) -- pivots are the largest
      end
      local A = rand(40, 40) + gb.eye(40, { dtype = "float64", device = here.device }) * 20
      local P, Lo, U = L.lu(A, { pivot = false })
      expect(P:numel()):to_be(0)
      expect(Lo:matmul(U)):to_be_close(A, 1e-10)
      expect(function() L.lu(gb.tensor { { 0.0, 1.0 }, { 1.0, 0.0 } }, { pivot = false }) end):to_fail("a pivot is 0")
      expect(gb.lu_unpack(L.lu_factor(gb.zeros(0, 0)))):to_have_shape(0, 0)
      local LU, pivots = L.lu_factor(A, { pivot = false })
      expect(pivots[40]:item()):to_be(40)
      expect(A:matmul(L.lu_solve(LU, pivots, rand(40, 1):zero_() + 1))):to_be_close(gb.ones(40), 1e-10)
    end)
    it("takes singular matrices, as PyTorch does", function()
      local P, Lo, U = L.lu(gb.zeros(3, 3))
      expect(U:abs():sum():item()):to_be(0)
      expect(P:matmul(Lo)):to_be_close(gb.eye(3), 0)
    end)
    it("differentiates twice", function()
      gb.manual_seed(9)
      local A, d = rand(4, 4) + gb.eye(4, { dtype = "float64", device = here.device }) * 5, rand(4, 4)
      A:requires_grad_()
      local function value(x)
        local _, Lo, U = L.lu(x)
        return (Lo:square() * 0.7):sum() + U:square():sum()
      end
      local function slope(x) return (gb.grad(value(x), x, { create_graph = true }) * d):sum() end
      local second = gb.grad(slope(A), A)
      local h = 2 ^ -17
      local up = slope((A:detach() + d * h):requires_grad_()):item()
      local down = slope((A:detach() - d * h):requires_grad_()):item()
      expect((second * d):sum()):to_be_near((up - down) / (2 * h), 1e-6)
    end)
    it("says what it turns down", function()
      expect(function() L.lu(gb.full({ 2, 2 }, 0 / 0)) end):to_fail("not finite")
      expect(function() L.lu(gb.ones(2)) end):to_fail("a matrix or a batch of them")
      expect(function() L.lu(gb.ones(2, 2, { dtype = "float16" })) end):to_fail("float16")
      expect(function() L.lu_factor(gb.arange(4):reshape(2, 2)) end):to_fail("int64")
      local LU, pivots = L.lu_factor(gb.eye(2) * 2)
      expect(function() L.lu_solve(LU, pivots, gb.ones(3, 1)) end):to_fail("as many rows as LU")
      expect(function() L.lu_solve(LU, pivots + 5, gb.ones(2, 1)) end):to_fail("outside of 1 .. 2")
      expect(function() L.lu_solve(LU, gb.ones(2), gb.ones(2, 1)) end):to_fail("they are integers")
      expect(function() L.lu_solve(LU, pivots[1], gb.ones(2, 1)) end):to_fail("do not fit")
      expect(function() L.lu_solve(gb.ones(2, 3), pivots, gb.ones(2, 1)) end):to_fail("must be equal")
      local P, Lo = gb.lu_unpack(LU, pivots, false)
      expect(P:numel() + Lo:numel()):to_be(4)
      expect(function() gb.lu_unpack(LU, gb.ones(3, { dtype = "int32" })) end):to_fail("do not fit")
    end)
    it("runs in float32 under autocast", function()
      gb.amp.autocast("bfloat16", function()
        local P, Lo, U = L.lu(gb.randn({ 3, 3 }):to("bfloat16"))
        expect(P.dtype .. Lo.dtype .. U.dtype):to_be("float32float32float32")
        expect(L.matrix_sqrth(gb.eye(2, { dtype = "bfloat16" })).dtype):to_be("float32")
      end)
    end)
  end)

  describe("orthogonal", function()
    -- The rows or columns of a weight are orthonormal.
    local function is_orthogonal(w)
      w = w:detach():double()
      if w:size(-2) < w:size(-1) then w = w:transpose(-2, -1) end
      local product = w:transpose(-2, -1):matmul(w)
      expect(product):to_be_close(gb.eye(w:size(-1)):double():expand(product.shape), 1e-5)
    end
    it("keeps weights orthogonal through training", function()
      gb.manual_seed(8)
      for _, map in ipairs { "matrix_exp", "cayley", "householder", false } do
        for _, sizes in ipairs { { 4, 4 }, { 3, 5 }, { 5, 3 } } do
          for _, based in ipairs { true, false } do
            local layer = nn.Linear(sizes[1], sizes[2])
            local before = layer.weight:detach():clone()
            nn.utils.orthogonal(layer, { orthogonal_map = map or nil, use_trivialization = based })
            is_orthogonal(layer.weight)
            local made = map or sizes[1] == sizes[2] and "matrix_exp" or "householder"
            if based or made == "householder" then -- it begins at the orthogonal factor of what was there
              local tall = sizes[2] >= sizes[1]
              local q = tall and before or before:t()
              local r = (tall and layer.weight or layer.weight:t()):t():matmul(q)
              expect(r:tril(-1):abs():amax()):to_be_near(0, 1e-5)
              expect(r:diagonal():gt(0):all():item()):to_be(true)
            end
            local optimizer = gb.optim.SGD(layer:parameters(), { lr = 0.1 })
            for _ = 1, 3 do
              optimizer:zero_grad()
              layer(gb.ones(2, sizes[1])):square():sum():backward()
              expect(layer.weight_orig.grad:abs():sum():item() > 0):to_be(true)
              optimizer:step()
            end
            layer(gb.ones(2, sizes[1]))
            is_orthogonal(layer.weight)
          end
        end
      end
    end)
    it("says what it turns down", function()
      expect(function() nn.utils.orthogonal(nn.Linear(2, 2), "bias") end):to_fail("1 dimensions")
      expect(function() nn.utils.orthogonal(nn.ReLU()) end):to_fail("no parameter 'weight'")
      local layer = nn.utils.orthogonal(nn.Linear(2, 2))
      expect(function() nn.utils.orthogonal(layer) end):to_fail("computed by orthogonal already")
      local low = nn.Linear(2, 2, { dtype = "bfloat16" })
      expect(function() nn.utils.orthogonal(low) end):to_fail("the weight is bfloat16")
      expect(low(gb.ones(1, 2, { dtype = "bfloat16" }))):to_have_shape(1, 2) -- as it was
    end)
  end)
end

-- ====}

-- {==== layers and options ====

describe("norms within layers", function()
  it("give what both give", function()
    gb.manual_seed(1)
    local function trained(norm, x)
      norm(x)
      gb.no_grad(function()
        norm.weight:uniform_(0.5, 2)
        norm.bias:uniform_(-1, 1)
      end)
      return norm:eval()
    end
    local x = gb.randn({ 4, 3, 6, 6 })
    local conv = nn.Conv2d(3, 4, 3, { stride = 2, padding = 1, bias = false })
    local norm = trained(nn.BatchNorm2d(4), conv(x))
    local both = nn.utils.fuse_conv_bn_eval(conv:eval(), norm)
    expect(both(x)):to_be_close(norm(conv(x)), 1e-5)
    expect(conv.bias):to_be(nil)
    local up = nn.ConvTranspose2d(3, 2, 2, { stride = 2 })
    local up_norm = trained(nn.BatchNorm2d(2), up(x))
    expect(nn.utils.fuse_conv_bn_eval(up:eval(), up_norm, true)(x)):to_be_close(up_norm(up(x)), 1e-5)
    local linear, z = nn.Linear(3, 5), gb.randn({ 6, 3 })
    local linear_norm = trained(nn.BatchNorm1d(5), linear(z))
    local made = nn.utils.fuse_linear_bn_eval(linear:eval(), linear_norm)
    expect(made(z)):to_be_close(linear_norm(linear(z)), 1e-5)
    expect(#made:parameters()):to_be(2)
  end)
  it("say what they turn down", function()
    local conv, norm = nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)
    local fuse = nn.utils.fuse_conv_bn_eval
    expect(function() fuse(conv, norm) end):to_fail("for evaluation")
    expect(function() fuse(conv:eval(), nn.BatchNorm2d(3, { track_running_stats = false }):eval()) end)
      :to_fail("no running statistics")
    expect(function() fuse(conv, nn.BatchNorm2d(4):eval()) end):to_fail("4 channels")
    expect(function() fuse(nn.Conv2d(2, 3, 1, { activation = "relu" }):eval(), norm:eval()) end):to_fail("activation")
    expect(function() fuse(nn.ReLU():eval(), norm:eval()) end):to_fail("no parameter")
  end)
end)

describe("Transformer", function()
  it("calls modules of one's own", function()
    local Half = nn.Module:extend("Half")
    function Half:forward(x, mask, padding, o) return x / 2, mask, padding, o end
    local model = nn.Transformer(8, 2, { custom_encoder = Half(), num_decoder_layers = 1, dim_feedforward = 16 })
    expect(model(gb.rand(7, 3, 8), gb.rand(5, 3, 8))):to_have_shape(5, 3, 8)
    local Both = nn.Module:extend("Both")
    function Both:forward(tgt, memory) return tgt + memory:sum() end
    local custom = nn.Transformer(8, 2, { custom_encoder = Half(), custom_decoder = Both() })
    expect(#custom:parameters()):to_be(0)
    expect(custom(gb.ones(1, 1, 8), gb.zeros(2, 1, 8))[1][1][1]:item()):to_be(4)
  end)
end)

describe("gradients of some leaves", function()
  it("are what backward adds for inputs", function()
    local x, y = gb.tensor({ 2.0 }):requires_grad_(), gb.tensor({ 3.0 }):requires_grad_()
    local loss = (x * x * y):sum()
    loss:backward({ inputs = { x }, retain_graph = true })
    expect(x.grad:item()):to_be(12)
    expect(y.grad):to_be(nil)
    loss:backward(nil, { inputs = { x, y } })
    expect(x.grad:item()):to_be(24)
    expect(y.grad:item()):to_be(4)
    local z = x * 2
    expect(function() (z * z):sum():backward({ inputs = { z } }) end):to_fail("a result of ops")
    expect(function() x:sum():backward({ inputs = {} }) end):to_fail("'inputs' is empty")
  end)
  it("reach hooks when they have been added up", function()
    local x, seen = gb.tensor({ 2.0 }):requires_grad_(), {}
    local hook = x:register_post_accumulate_grad_hook(function(p)
      seen[#seen + 1] = p.grad:item()
      expect(p):to_be(x)
    end)
    x:register_hook(function(g) return g * 10 end)
    gb.sum(x * 3 + x):backward()
    gb.sum(x):backward()
    expect(table.concat(seen, " ")):to_be("40.0 50.0")
    expect(gb.grad(gb.sum(x), x):item()):to_be(10)
    expect(#seen):to_be(2)
    hook:remove()
    gb.sum(x):backward()
    expect(#seen):to_be(2)
    x:register_post_accumulate_grad_hook(function(p) p.grad = nil end)
    gb.sum(x):backward()
    expect(x.grad):to_be(nil)
    x:register_post_accumulate_grad_hook(function() error("of the hook") end)
    expect(function() gb.sum(x):backward() end):to_fail("of the hook")
    local y = x * 2
    expect(function() y:register_post_accumulate_grad_hook(print) end):to_fail("a result of ops")
    expect(function() gb.ones(1):register_post_accumulate_grad_hook(print) end):to_fail("does not require gradients")
  end)
  it("let an optimizer step as they come", function()
    local w = nn.Parameter(gb.tensor({ 1.0 }))
    local optimizer = gb.optim.SGD({ w }, { lr = 0.5 })
    w:register_post_accumulate_grad_hook(function()
      optimizer:step()
      optimizer:zero_grad()
    end)
    gb.sum(w * 2):backward()
    expect(w:item()):to_be(0)
  end)
end)

describe("small things", function()
  it("of tensors", function()
    expect(gb.ones(3, 2, { dtype = "int16" }).nbytes):to_be(12)
    expect(gb.ones(0).nbytes):to_be(0)
    local x = gb.ones(1):requires_grad_()
    local y = x * 2
    expect(y.retains_grad):to_be(false)
    y:retain_grad()
    expect(y.retains_grad):to_be(true)
    expect(x.retains_grad):to_be(false)
  end)
  it("of index_add in place, and of integers", function()
    local x = gb.zeros(3)
    x:index_add_(1, gb.tensor({ 0, 2, 0 }), gb.tensor({ 1.0, 2, 3 }), { alpha = 2 })
    expect(x):to_be_close({ 8, 0, 4 }, 0)
    local whole = gb.zeros(2, { dtype = "int32" }):index_add(1, gb.tensor({ 1 }), gb.tensor({ 3 }, { dtype = "int32" }),
      { alpha = -2 })
    expect(whole):to_be_close({ 0, -6 }, 0)
    expect(function() gb.zeros(2, { dtype = "int32" }):index_add(1, gb.tensor({ 1 }),
      gb.tensor({ 3 }, { dtype = "int32" }), { alpha = 0.5 }) end):to_fail("whole number")
  end)
  it("of permutations", function()
    local order = gb.randperm(20, { dtype = "uint8" })
    expect(order.dtype):to_be("uint8")
    expect((order:sort())):to_be_close(gb.arange(20), 0)
    expect(gb.randperm(3, { dtype = "float16" }).dtype):to_be("float16")
    expect(function() gb.randperm(300, { dtype = "uint8" }) end):to_fail("uint8 does not hold all integers up to 299")
    expect(gb.randperm(0, { dtype = "bool" }):numel()):to_be(0)
  end)
  it("of frexp", function()
    local y, n = gb.frexp(gb.tensor({ 6.0, -0.3, 0, math.huge, 2 ^ -149, 65504 }))
    expect(y):to_be_close({ 0.75, -0.6, 0, math.huge, 0.5, 65504 / 65536 }, 1e-7)
    expect(n):to_be_close({ 3, -1, 0, 0, -148, 16 }, 0)
    expect(n.dtype):to_be("int32")
    local half, k = gb.frexp(gb.tensor({ 65504, 2 ^ -24, 0 / 0 }, { dtype = "float16" }))
    expect(half.dtype):to_be("float16")
    expect(half):to_be_close({ 65504 / 65536, 0.5, 0 / 0 }, 1e-7)
    expect(k[2]:item()):to_be(-23)
    local x = gb.tensor({ 6.0 }):requires_grad_()
    x:frexp():sum():backward()
    expect(x.grad:item()):to_be(0.125)
    expect(function() gb.frexp(gb.arange(3)) end):to_fail("int64")
  end)
  it("of the incomplete gamma functions", function()
    -- far out, and where sums of many terms would be needed; numbers of SciPy 1.14 (scipy.special.gammainc, gammaincc)
    local a = gb.tensor({ 1e6, 1e6, 2000, 2000, 1e-3, 30, 500 }):double()
    local x = gb.tensor({ 1.001e6, 0.998e6, 2300, 1500, 0.5, 100, 500 }):double()
    expect(gb.igamma(a, x) + gb.igammac(a, x)):to_be_close(gb.ones(7), 1e-13)
    local whole = gb.arange(1, 30):double() -- of whole numbers it is a sum: e^-x x^k / k! over k below them
    local y, sum = gb.full({ 29 }, 12.5, { dtype = "float64" }), {}
    local term, total = math.exp(-12.5), 0
    for k = 1, 29 do
      total = total + term
      sum[k], term = total, term * 12.5 / k
    end
    expect(gb.igammac(whole, y) / gb.tensor(sum, { dtype = "float64" })):to_be_close(gb.ones(29), 1e-13)
    local edges = gb.tensor({ { 0, 1 }, { 1, 0 }, { 0, 0 }, { -1, 1 }, { 1, -1 }, { 1, math.huge }, { math.huge, 1 },
      { math.huge, math.huge }, { 0 / 0, 1 } })
    expect(gb.igamma(edges:select(2, 1), edges:select(2, 2))):to_be_close({ 1, 0, 0 / 0, 0 / 0, 0 / 0, 1, 0, 0 / 0,
      0 / 0 }, 0)
    expect(gb.igammac(edges:select(2, 1), edges:select(2, 2))):to_be_close({ 0, 1, 0 / 0, 0 / 0, 0 / 0, 0, 1, 0 / 0,
      0 / 0 }, 0)
    local shape = gb.ones(1):requires_grad_()
    expect(function() gb.igamma(shape, gb.ones(1)):sum():backward() end):to_fail("no gradient with respect to")
    expect(gb.ones(2):igamma_(gb.ones(2))):to_be_close({ 1 - math.exp(-1), 1 - math.exp(-1) }, 1e-6)
  end)
  it("of printing", function()
    local x = gb.arange(2000)
    gb.set_printoptions { profile = "short" }
    local short = tostring(x)
    gb.set_printoptions { profile = "full" }
    local full = tostring(x)
    gb.set_printoptions { profile = "default" }
    expect(#short < #tostring(x)):to_be(true)
    expect(full:find("1234", 1, true) ~= nil):to_be(true)
    expect(tostring(x):find("1234", 1, true)):to_be(nil)
  end)
  it("of files", function()
    local path = os.tmpname()
    gb.save(path, { x = gb.arange(3) })
    expect(gb.load(path, { device = here.device }).x.device):to_be(here.device)
    os.remove(path)
  end)
  it("of averages together", function()
    local model = nn.Linear(2, 1)
    local average = gb.optim.Average(model, { multi_avg_fn = function(averages, weights, n)
      for i, one in ipairs(averages) do one:copy_(one * 2 + weights[i] * n) end
    end })
    gb.no_grad(function() model.weight:fill_(1) end)
    average:update_parameters()
    average:update_parameters()
    expect(average:state_dict().averages.weight):to_be_close({ 3, 3 }, 0)
    expect(function() gb.optim.Average(model, { avg_fn = print, multi_avg_fn = print }) end):to_fail("one of the two")
    local replaced = gb.optim.Average(model, { multi_avg_fn = function(averages, weights, n)
      if n > 0 then averages[1] = weights[1] * 2 end
    end })
    replaced:update_parameters()
    expect(function() replaced:update_parameters() end):to_fail("change the averages in place")
  end)
  it("of losses", function()
    local x = gb.ones(2, 3)
    expect(function() F.mse_loss(x, x, gb.ones(2)) end):to_fail("weight has shape")
    expect(F.l1_loss(x, x * 3, gb.tensor({ { 1.0, 0, 0 }, { 0, 0, 0 } }))):to_be_near(2)
    expect(function() nn.TripletMarginWithDistanceLoss { margin = 0 } end):to_fail("above 0")
    expect(function() F.triplet_margin_with_distance_loss(x, x, x, { distance_function = function() return 5 end }) end)
      :to_fail("distance_function gives a tensor")
    expect(function() F.triplet_margin_with_distance_loss(x, x, gb.ones(3)) end):to_fail("as many each")
    expect(function() nn.LinearCrossEntropyLoss(2, 3, { weight = gb.ones(2) }) end):to_fail("there are 3 classes")
    expect(function() nn.LinearCrossEntropyLoss(2, 3, { out_features = { 0 } }) end):to_fail("above 0")
    for _, cutoffs in ipairs { { 5, 5 }, { 0 }, { 12 }, { 7, 3 }, {} } do
      expect(function() nn.AdaptiveLogSoftmaxWithLoss(8, 12, cutoffs) end):to_fail("cutoff")
    end
    expect(function() nn.AdaptiveLogSoftmaxWithLoss(8, 12, { 3 }, { div_value = 9 }) end):to_fail("without features")
    expect(function() nn.AdaptiveLogSoftmaxWithLoss(8, 12, { 3 }, { div_value = 0 / 0 }) end):to_fail("features")
    local head = nn.AdaptiveLogSoftmaxWithLoss(8, 12, { 3 })
    expect(function() head(gb.ones(2, 8), gb.tensor({ 0, 12 })) end):to_fail("outside of 0 .. 11")
    expect(function() head(gb.ones(2, 8), gb.tensor({ 0 })) end):to_fail("x has 2 samples, target 1")
    expect(function() head(gb.ones(2, 7), gb.tensor({ 0, 1 })) end):to_fail("expects x [n, 8]")
    expect(head:log_prob(gb.rand(4, 8)):exp():sum(2)):to_be_close({ 1, 1, 1, 1 }, 1e-5)
  end)
  it("of pooling and grids", function()
    local x = gb.rand(1, 1, 6, 6)
    expect(function() F.fractional_max_pool2d(x, 2, { output_size = 6 }) end):to_fail("do not fit")
    expect(function() F.fractional_max_pool2d(x, 2, { output_size = 3, output_ratio = 0.5 }) end):to_fail("either")
    expect(function() F.fractional_max_pool2d(x, 2, { output_ratio = 1.5 }) end):to_fail("between 0 and 1")
    expect(function() F.fractional_max_pool2d(x, { 2, 2, 2 }, { output_size = 3 }) end):to_fail("kernel_size")
    expect(function() F.fractional_max_pool2d(x, 2, { output_size = 3, random_samples = gb.ones(2) }) end)
      :to_fail("random_samples has shape")
    expect(function() F.fractional_max_pool2d(x, 2, { output_size = 3, random_samples = gb.ones(1, 1, 2) * 2 }) end)
      :to_fail("between 0 and 1")
    expect(function() gb.gradient(gb.ones(1)) end):to_fail("1 points")
    expect(function() gb.gradient(gb.ones(3), { edge_order = 3 }) end):to_fail("edge_order is 3")
    expect(function() gb.gradient(gb.ones(3), { spacing = { gb.ones(2) } }) end):to_fail("a vector of 3")
    expect(function() gb.gradient(gb.ones(3), { spacing = { 1, 2 } }) end):to_fail("2 entries for 1")
    expect(function() gb.gradient(gb.ones(3, 3), { dim = { 1, -2 } }) end):to_fail("twice")
    expect(function() gb.gradient(gb.arange(3)) end):to_fail("int64")
    expect(function() gb.histogramdd(gb.rand(4, 2), { 3 }) end):to_fail("1 bins for 2 dimensions")
    expect(function() gb.histogramdd(gb.rand(4, 2), 1 << 20) end):to_fail("cells")
    expect(function() gb.histogramdd(gb.rand(4, 2), 0) end):to_fail("bins")
    expect(function() gb.histogramdd(gb.rand(4, 2), 3, { weight = gb.ones(3) }) end):to_fail("4 points")
    expect(function() F.interpolate(x, { 3, 3 }, { recompute_scale_factor = true }) end):to_fail("size is given")
    expect(nn.Upsample({ scale_factor = 1.6, mode = "bilinear", recompute_scale_factor = true })(x))
      :to_have_shape(1, 1, 9, 9)
  end)
  it("of embeddings", function()
    local table_ = nn.Embedding(3, 2, { max_norm = 1 })
    gb.no_grad(function() table_.weight:fill_(3) end)
    local y = table_(gb.tensor({ 0, 0, 2 }))
    expect(y:norm(2, 2)):to_be_close({ 1, 1, 1 }, 1e-5)
    expect(table_.weight[2]):to_be_close({ 3, 3 }, 0) -- it was not picked
    y:sum():backward()
    expect(table_.weight.grad[1]):to_be_close({ 2, 2 }, 1e-6)
    if here.device == "cpu" then -- a GPU says so later
      expect(function() table_(gb.tensor({ 3 })) end):to_fail("3")
    end
    expect(function() F.embedding(gb.tensor({ 0 }), table_.weight, { max_norm = -1 }) end):to_fail("max_norm")
    expect(nn.Embedding(3, 2, { max_norm = 1 })(gb.zeros(0, { dtype = "int64" }))):to_have_shape(0, 2)
    local bag = nn.EmbeddingBag(4, 2, { max_norm = 1, scale_grad_by_freq = true, mode = "sum" })
    bag(gb.tensor({ 0, 0, 1 }), gb.tensor({ 0, 2 })):sum():backward()
    expect(bag.weight.grad):to_be_close({ 1, 1, 1, 1, 0, 0, 0, 0 }, 1e-6)
    expect(function() F.embedding_bag(gb.zeros(1, 2, { dtype = "int64" }), gb.ones(2, 2),
      { mode = "max", scale_grad_by_freq = true }) end):to_fail("sum and mean")
    expect(F.embedding_bag(gb.zeros(0, { dtype = "int64" }), gb.ones(2, 2), gb.tensor({ 0 }),
      { scale_grad_by_freq = true })):to_be_close({ 0, 0 }, 0)
  end)
end)

-- ====}

gb.test.finish()

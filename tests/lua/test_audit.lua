-- test_audit.lua - gb.amp.audit: which op ran in which dtype and why, what its casts cost, whether Tensor Cores can
-- multiply it, and what its numbers were. Sizes, bytes and scales are worked out by hand beside the cases.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local amp, nn, F, optim = gb.amp, gb.nn, gb.nn.functional, gb.optim

local quiet = { print = false }

-- Rows of an op, in order; of a phase if one is named.
local function rows_of(report, op, phase)
  local found = {}
  for _, row in ipairs(report.rows) do
    if row.op == op and (not phase or row.phase == phase) then found[#found + 1] = row end
  end
  return found
end

local function row_of(report, op, phase)
  local found = rows_of(report, op, phase)
  if #found ~= 1 then error(("%d rows of %s instead of one:\n%s"):format(#found, op, tostring(report))) end
  return found[1]
end

local function line_here(offset) return debug.getinfo(2, "l").currentline + (offset or 0) end
local function is_line(row, line) expect(row.line:match("test_audit%.lua:(%d+)$")):to_be(tostring(line)) end

local function holds(text, part)
  if not text:find(part, 1, true) then error(("'%s' is not in:\n%s"):format(part, text)) end
end

describe("rows", function()
  it("say what an op ran in, why, where, and as part of which module", function()
    local model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Softmax(-1))
    local report = amp.audit(model, gb.randn(4, 8), { precision = "16-mixed", print = false })
    local linear, norm, softmax = row_of(report, "linear"), row_of(report, "layer_norm"), row_of(report, "softmax")
    expect(linear.phase):to_be("forward")
    expect(linear.module):to_be("[1]")
    expect(linear.name):to_be("0")
    expect(linear.module_class):to_be("Linear")
    expect(linear.class):to_be("lower")
    expect(linear.why):to_be("scope of float16")
    expect(linear.inputs[1].before):to_be("float32")
    expect(linear.inputs[1].dtype):to_be("float16")
    expect(linear.outputs[1].dtype):to_be("float16")
    expect(table.concat(linear.outputs[1].shape, "x")):to_be("4x16")
    expect(norm.class):to_be("float32")
    expect(norm.why):to_be("float32 class")
    expect(norm.inputs[1].dtype):to_be("float16") -- its kernel reads 16 bits as they are: nothing is cast
    expect(norm.casts):to_be(0)
    expect(norm.outputs[1].dtype):to_be("float32")
    expect(softmax.class):to_be("float32")
    expect(softmax.module):to_be("[3]")
  end)
  it("are one for equal calls in a row, with a count", function()
    local report = amp.audit(nn.Identity(), function()
      local x = gb.ones(4)
      for _ = 1, 5 do x = x + 1 end
      x = x * 2
      for _ = 1, 2 do x = x + 1 end
    end, quiet)
    local adds = rows_of(report, "add")
    expect(#adds):to_be(2)
    expect(adds[1].calls):to_be(5)
    expect(adds[2].calls):to_be(2)
    expect(adds[1].numbers[1].numel):to_be(20)
  end)
  it("are of any number of results", function()
    local x, y = gb.ones(4), gb.full({ 4 }, 3.0)
    local row = row_of(amp.audit(nn.Identity(), function()
      for _ = 1, 700 do gb.mul(x, y) end -- more than lie on a device before they are read
    end, quiet), "mul")
    expect(row.calls):to_be(700)
    expect(row.numbers[1].numel):to_be(2800)
    expect(row.numbers[1].exponents[1]):to_be(2800) -- 3 = 1.5 * 2^1
    expect(row.numbers[1].amax):to_be(3.0)
    local empty = row_of(amp.audit(nn.Identity(), function() gb.ones(0, 4):exp() end, quiet), "exp")
    expect(empty.numbers[1]):to_be(false)
  end)
  it("are of a composite's parts, not of it too; its casts are counted once", function()
    local a, b = gb.ones(8, 8), gb.ones(8, 8)
    local report = amp.audit(nn.Identity(), function()
      amp.autocast("float16", gb.mm, a, b)
      F.mse_loss(a, b)
    end, quiet)
    expect(#rows_of(report, "mm")):to_be(0)
    local product = row_of(report, "matmul")
    expect(product.of):to_be("mm")
    expect(product.why):to_be("scope of float16")
    expect(product.inputs[1].before):to_be("float32")
    expect(product.casts):to_be(2)
    expect(product.cast_bytes):to_be(2 * 64 * (4 + 2))
    expect(#rows_of(report, "mse_loss")):to_be(0)
    expect(row_of(report, "mean").of):to_be("mse_loss")
    expect(report.casts):to_be(2)
  end)
  it("name a pinned module, and why autocast is off", function()
    local model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8)):precision("float32"),
      nn.Linear(8, 8):precision("bfloat16"))
    local report = amp.audit(model, gb.randn(8, 8), { precision = "16-mixed", print = false })
    local linear = rows_of(report, "linear")
    expect(linear[1].why):to_be("scope of float16")
    expect(linear[2].why):to_be("pinned to float32 ([2])")
    expect(linear[2].module):to_be("[2][1]")
    expect(linear[2].outputs[1].dtype):to_be("float32")
    expect(linear[3].why):to_be("pinned to bfloat16 ([3])")
    expect(linear[3].outputs[1].dtype):to_be("bfloat16")
    expect(row_of(report, "cast").why):to_be("asked for") -- what widens the argument of the pinned module
    expect(row_of(amp.audit(nn.Linear(8, 8), gb.ones(1, 8), quiet), "linear").why):to_be("autocast is off")
  end)
  it("tell a dtype that the caller named", function()
    local report = amp.audit(nn.Identity(), function()
      amp.autocast("float16", function() gb.ones(4):softmax(-1, { dtype = "float64" }) end)
    end, quiet)
    expect(row_of(report, "softmax").why):to_be("dtype named by the caller")
  end)
  it("are asked about the format of their scope, also where an op made of others is the first in it", function()
    local x, y = gb.ones(4), gb.zeros(4)
    local report = amp.audit(nn.Identity(), function() amp.autocast("bfloat16", function() F.mse_loss(x, y) end) end,
      quiet)
    for _, op in ipairs { "sub", "square", "mean" } do
      expect(row_of(report, op).numbers[1].format):to_be("bfloat16")
    end
  end)
end)

describe("casts", function()
  it("of weights are made once and their copies then kept", function()
    local layer = nn.Linear(8, 4, { bias = false })
    local x = gb.randn(16, 8)
    local report = amp.audit(layer, function(m)
      amp.autocast("float16", m, x)
      amp.autocast("float16", function() m(x * 1) end)
    end, quiet)
    local linear = rows_of(report, "linear")
    expect(linear[1].casts):to_be(2)
    expect(linear[1].cast_bytes):to_be((16 * 8 + 8 * 4) * (4 + 2))
    expect(linear[1].reused):to_be(0)
    expect(linear[2].casts):to_be(1)
    expect(linear[2].reused):to_be(1)
    expect(linear[2].cast_bytes):to_be(16 * 8 * (4 + 2))
    expect(report.casts):to_be(3)
    expect(report.reused):to_be(1)
    expect(#rows_of(report, "copy")):to_be(0) -- they are no ops of the recipe
    gb.no_grad(function() layer.weight:mul_(2) end)
    local again = amp.audit(layer, x, { precision = "16-mixed", print = false })
    expect(row_of(again, "linear").casts):to_be(2) -- the copy was stale
  end)
  it("that lose values say how many", function()
    local x = gb.tensor { 1e-9, 1, 2, 1e6 } -- one is flushed by float16, and one overflows
    local report = amp.audit(nn.Identity(), function() amp.autocast("float16", F.linear, x, gb.ones(8, 4)) end, quiet)
    local counts = row_of(report, "linear").cast_numbers.counts
    expect(counts.flushed):to_be(1)
    expect(counts.overflowed):to_be(1)
    expect(report.flushing[1].row.op):to_be("linear")
    expect(report.flushing[1].share):to_be_near(1 / 36)
    expect(report.first_nonfinite.how):to_be("in the cast of its input to float16")
  end)
end)

describe("Tensor Cores", function()
  local function linear(m, k, n, precision)
    return row_of(amp.audit(nn.Linear(k, n), gb.ones(m, k), { precision = precision, print = false }), "linear")
  end
  it("want sizes that are multiples of 8 in 16 bits", function()
    local fits = linear(16, 24, 32, "16-mixed")
    expect(fits.tensor_cores):to_be("yes")
    expect(fits.obstacle):to_be(nil)
    expect(fits.operations):to_be(2 * 16 * 24 * 32)
    expect(linear(16, 9, 32, "16-mixed").obstacle):to_be("K 9")
    expect(linear(15, 9, 17, "bf16-mixed").obstacle):to_be("M 15, N 17, K 9")
    expect(linear(15, 9, 17, "bf16-mixed").tensor_cores):to_be("no")
  end)
  it("multiply float32 only as TF32, of multiples of 4", function()
    expect(linear(16, 24, 32, "32-true").obstacle):to_be("float32 without TF32")
    gb.set_float32_matmul_precision("high")
    local four, odd = linear(12, 4, 20, "32-true"), linear(12, 6, 20, "32-true")
    gb.set_float32_matmul_precision("highest")
    expect(four.tensor_cores):to_be("yes")
    expect(odd.obstacle):to_be("K 6")
  end)
  it("do not count for float64, nor where an operand is copied first", function()
    local x, y = gb.ones(16, 16, { dtype = "float64" }), gb.ones(16, 16, { dtype = "float16" })
    local report = amp.audit(nn.Identity(), function()
      gb.matmul(x, x)
      gb.matmul(y:t(), y)                                    -- a transposed operand is as good
      gb.matmul(gb.ones(16, 32, { dtype = "float16" }):slice(2, 1, 32, 2), y) -- every second column is not
    end, quiet)
    local products = rows_of(report, "matmul")
    expect(products[1].obstacle):to_be("float64")
    expect(products[2].obstacle):to_be(nil)
    expect(products[3].obstacle):to_be("copied first")
  end)
  it("of an MLP with an odd hidden layer: only some products fit", function()
    local model = nn.Sequential(nn.Linear(16, 17), nn.ReLU(), nn.Linear(17, 8))
    local x = gb.randn(32, 16)
    local report = amp.audit(model, function(m) amp.autocast("float16", m, x):float():sum():backward() end, quiet)
    local forward, backward = rows_of(report, "linear"), rows_of(report, "linear_backward")
    expect(forward[1].obstacle):to_be("N 17")
    expect(forward[2].obstacle):to_be("K 17")
    expect(backward[1].obstacle):to_be("N 17") -- dx [32, 17] = grad [32, 8] @ weight [8, 17]
    expect(backward[1].products[2].obstacle):to_be("N 17") -- dweight [8, 17]
    expect(#backward[2].products):to_be(1)     -- x wants no gradient
    expect(backward[2].obstacle):to_be("M 17")
    expect(report.eligible_operations):to_be(0)
    expect(report.operations):to_be(2 * 32 * 17 * (16 + 8 + 8 + 8 + 16))
    local mlp = row_of(amp.audit(nn.MLP(16, 24, { outputs = 9 }), x, { precision = "16-mixed", print = false }), "mlp")
    expect(mlp.tensor_cores):to_be("in part")
    expect(mlp.eligible_operations):to_be(2 * 32 * 16 * 24)
    expect(mlp.obstacle):to_be("N 9")
  end)
  it("of convolutions: the channels", function()
    local model, x = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 8, 3)), gb.randn(2, 3, 8, 8)
    local report = amp.audit(model, function(m) amp.autocast("float16", m, x):float():sum():backward() end, quiet)
    local first, second = table.unpack(rows_of(report, "conv2d"))
    expect(first.obstacle):to_be("channels in 3")
    expect(first.operations):to_be(2 * (2 * 6 * 6) * 16 * (3 * 9))
    expect(second.tensor_cores):to_be("yes") -- what it gets lies channels-last
    local p = second.products[1]
    expect(("%dx%dx%d"):format(p.m, p.n, p.k)):to_be("32x8x144")
    local weight = rows_of(report, "conv2d_backward_weight")
    expect(weight[1].module):to_be("[2]")
    expect(weight[1].obstacle):to_be("copied first") -- the gradient of a sum is one number, expanded
    expect(weight[2].obstacle):to_be("channels in 3")
    expect(row_of(report, "conv2d_backward_input").operations):to_be(second.operations)
    local rows = amp.audit(nn.Conv2d(8, 8, 3), gb.randn(2, 8, 8, 8), { precision = "16-mixed", print = false })
    expect(row_of(rows, "conv2d").obstacle):to_be("copied first") -- an image with its channels first
  end)
  it("of attention: head_dim", function()
    local function attention(width)
      local model, x = nn.MultiheadAttention(width, 2), gb.randn(2, 5, width)
      return amp.audit(model, function(m) amp.autocast("float16", m, x):float():sum():backward() end, quiet)
    end
    local report = attention(16)
    local forward, backward = row_of(report, "scaled_dot_product_attention"),
      row_of(report, "scaled_dot_product_attention_backward")
    expect(forward.class):to_be("lower")
    expect(forward.tensor_cores):to_be("yes") -- 5 steps of time, head_dim 8
    expect(forward.operations):to_be(2 * (2 * 2) * (5 * 5 * 8) * 2)
    expect(backward.operations):to_be(2 * (2 * 2) * (5 * 5 * 8) * 5)
    expect(backward.phase):to_be("backward")
    expect(row_of(attention(12), "scaled_dot_product_attention").obstacle):to_be("head_dim 6")
  end)
  it("of recurrent layers: every step's, and those of the weights over all steps", function()
    local time, batch, input, size, layers = 5, 8, 16, 24, 2
    for kind, gates in pairs { LSTM = 4, GRU = 3, RNN = 1 } do
      local model = nn[kind](input, size, { num_layers = layers, bidirectional = true })
      local x = gb.randn(time, batch, input):requires_grad_()
      local report = amp.audit(model, function(m)
        amp.autocast("bfloat16", m, x):float():sum():backward()
      end, quiet)
      local inputs, states = input + 2 * size, layers * size -- of both layers in one direction
      -- forward, the gradient of what goes in, and that of the weights
      expect(report.operations):to_be(3 * 2 * (2 * time * batch * gates * size * (inputs + states)))
      expect(report.eligible):to_be(1)
    end
  end)
end)

describe("what is not finite", function()
  it("is told by module, op and line", function()
    local Net = nn.Module:extend("Net")
    function Net:init() self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8, { bias = false }) end
    local line
    function Net:forward(x)
      x = self.first(x)
      line = line_here(1)
      x = self.second(x)
      return x * 2
    end
    local model = Net()
    gb.no_grad(function() model.second.weight:fill_(60000) end)
    model.first.bias:detach():fill_(50)
    local report = amp.audit(model, gb.randn(4, 8), { precision = "16-mixed", print = false })
    local first = report.first_nonfinite
    expect(first.op):to_be("linear")
    expect(first.module):to_be("second")
    expect(first.phase):to_be("forward")
    is_line(first, line)
    expect(report.overflowing[1].share):to_be(1.0)
    holds(tostring(report), "linear in second (")
  end)
  it("is not minus infinity in forward, which masks are made of", function()
    local report = amp.audit(nn.Identity(), function()
      gb.ones(4):masked_fill(gb.tensor { true, false, false, true }, -math.huge):softmax(-1)
    end, quiet)
    expect(row_of(report, "masked_fill").numbers[1].counts.infinite):to_be(2)
    expect(report.first_nonfinite):to_be(nil)
    holds(tostring(report), "nothing")
  end)
  it("is minus infinity too where a product made it, since no product makes a mask", function()
    local x, w = gb.full({ 8, 8 }, -200):half(), gb.full({ 8, 8 }, 200):half()
    local report = amp.audit(nn.Identity(), function() (x:matmul(w) * 2):relu() end, quiet) -- -320000 in float16
    expect(report.first_nonfinite.op):to_be("matmul")
    expect(report.first_nonfinite.phase):to_be("forward")
    report = amp.audit(nn.Identity(), function() (x * w):relu() end, quiet) -- may be a mask
    expect(report.first_nonfinite):to_be(nil)
  end)
  it("is found in backward", function()
    local w = nn.Parameter(gb.ones(3))
    local report = amp.audit(nn.Identity(), function() (w:sqrt() * gb.tensor { 1, math.huge, 1 }):sum():backward() end,
      quiet)
    expect(report.first_nonfinite.phase):to_be("forward") -- the product is infinite already
    w = nn.Parameter(gb.zeros(3))
    report = amp.audit(nn.Identity(), function() w:sqrt():sum():backward() end, quiet) -- 1 / (2 sqrt(0))
    expect(report.first_nonfinite.phase):to_be("backward")
    expect(report.first_nonfinite.row.of):to_be("sqrt")
  end)
end)

describe("the advised scale", function()
  -- A step whose float32 gradient, 2^-20 * (1 .. 8) / 8, is cast to float16 on its way into the first layer.
  local function small_step(scale)
    local layer, x = nn.Linear(8, 8, { bias = false }), gb.ones(8, 8)
    local factors = gb.arange(1, 9):float():mul(2.0 ^ -23):expand(8, 8):contiguous()
    local scaler = amp.GradScaler { scale = scale }
    return amp.audit(layer, function(m)
      local y = amp.autocast("float16", m, x)
      scaler:scale((y:float() * factors):sum()):backward()
    end, quiet)
  end
  it("is the power of two that leaves the top exponent two bits below the format's largest", function()
    local report = small_step(1)
    -- the largest gradient is 2^-20, float16's largest number has the exponent 15: 2^(15 - 2 + 20)
    expect(report.advice.top):to_be(-20)
    expect(report.advice.scale):to_be(2.0 ^ 33)
    expect(report.advice.format):to_be("float16")
    holds(tostring(report), "2^33 advised")
    local cast = row_of(report, "cast", "backward")
    expect(cast.of):to_be("cast") -- of y:float(), which the step calls and no module
    expect(cast.module):to_be(nil)
    expect(cast.numbers[1].counts.subnormal):to_be(64)
  end)
  it("does not depend on the scale that the step ran with", function()
    for _, scale in ipairs { 2.0 ^ 10, 65536, 3 * 2.0 ^ 8 } do
      local report = small_step(scale)
      expect(report.advice.scale):to_be(2.0 ^ 33)
      expect(report.advice.now):to_be(scale + 0.0)
    end
  end)
  it("flushes nothing", function()
    -- 2^-27 and 2^-26, 2^-25 * (1 .. 2) are below half of float16's smallest number
    local flushing = small_step(2.0 ^ -4)
    expect(row_of(flushing, "cast", "backward").numbers[1].counts.flushed > 0):to_be(true)
    local report = small_step(small_step(1).advice.scale)
    local counts = row_of(report, "cast", "backward").numbers[1].counts
    expect(counts.flushed + counts.subnormal + counts.overflowed):to_be(0)
    expect(#report.flushing):to_be(0)
  end)
  it("comes with what other scales would do", function()
    local advice = small_step(1).advice
    local by_scale = {}
    for _, row in ipairs(advice.table) do by_scale[math.log(row.scale, 2)] = row end
    expect(by_scale[33.0].flushed + by_scale[33.0].subnormal + by_scale[33.0].overflowed):to_be(0)
    expect(by_scale[35.0].overflowed):to_be(0)    -- 2^15 still fits
    expect(by_scale[37.0].overflowed):to_be(5 / 8) -- 2^-23 * 4 .. 2^-23 * 8: 2^16 and more
    expect(by_scale[41.0].overflowed):to_be(1.0)
  end)
  it("is none in bfloat16, and nothing without a backward pass", function()
    local layer = nn.Linear(8, 8)
    local report = amp.audit(layer, function(m) amp.autocast("bfloat16", m, gb.ones(8, 8)):float():sum():backward() end,
      quiet)
    expect(report.advice.scale):to_be(1.0)
    holds(tostring(report), "none is needed")
    expect(amp.audit(layer, gb.ones(8, 8), quiet).advice):to_be(nil)
  end)
  it("says why there is none where no gradient is finite and above 0", function()
    local function advised(factor)
      return amp.audit(nn.Identity(), function() (gb.ones(4):requires_grad_() * factor):sum():backward() end, quiet)
    end
    local infinite, zero = advised(math.huge), advised(0)
    expect(infinite.advice.scale):to_be(nil)
    expect(infinite.advice.infinite):to_be(4)
    holds(tostring(infinite), "none advised: no gradient is finite")
    expect(zero.advice.scale):to_be(nil)
    holds(tostring(zero), "none advised: all gradients are 0")
  end)
  it("does not ask what a hook computes", function()
    local report = amp.audit(nn.Identity(), function()
      local y = gb.ones(4):requires_grad_() * 2
      y:register_hook(function(g) gb.sum(g * 2 ^ 40) end)
      local z = y * 1
      z:sum():backward()
    end, quiet)
    expect(report.advice.top):to_be(1)
    holds(tostring(report), "mul in a hook on mul")
  end)
end)

describe("a whole step", function()
  local function make()
    gb.manual_seed(3)
    local model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.25), nn.LayerNorm(16), nn.Linear(16, 8))
    local opt, scaler = optim.AdamW(model:parameters(), { lr = 0.01 }), amp.GradScaler { init_scale = 1024 }
    local x, y = gb.randn(16, 8), gb.randint(0, 8, { 16 })
    local lines = {}
    local function step(m)
      opt:zero_grad()
      lines.loss = line_here(1)
      local loss = amp.autocast("float16", function() return F.cross_entropy(m(x), y) end)
      lines.backward = line_here(1)
      scaler:scale(loss):backward()
      scaler:unscale_(opt)
      nn.utils.clip_grad_norm_(m:parameters(), 1.0)
      scaler:step(opt)
      scaler:update()
      return loss
    end
    return model, step, lines, scaler
  end

  it("has its backward rows at the module and the line of the forward op", function()
    local model, step, lines = make()
    local report = amp.audit(model, step, quiet)
    local backward = rows_of(report, "linear_backward")
    expect(backward[1].module):to_be("[4]")
    expect(backward[2].module):to_be("[1]")
    expect(backward[1].of):to_be("linear")
    is_line(backward[1], lines.loss)
    expect(row_of(report, "layer_norm_backward").module):to_be("[3]")
    is_line(row_of(report, "scale_loss"), lines.backward)
    expect(row_of(report, "cross_entropy").class):to_be("float32")
    expect(row_of(report, "cross_entropy_backward").scale):to_be(1024.0)
    expect(row_of(report, "optim_step").phase):to_be("step")
    expect(row_of(report, "optim_step").of):to_be("AdamW")
    expect(row_of(report, "optim_step").outputs[2].dtype):to_be("float16") -- the copies that it refreshes
    expect(report.first_nonfinite):to_be(nil)
    expect(report.advice.now):to_be(1024.0)
  end)
  it("computes the same bits with and without an audit", function()
    local function train(audited)
      local model, step = make()
      local losses = {}
      for i = 1, 4 do
        if audited and i % 2 == 1 then amp.audit(model, function(m) losses[i] = step(m) end, quiet)
        else losses[i] = step(model) end
      end
      return losses, model:state_dict()
    end
    local losses, state = train(true)
    local plain_losses, plain_state = train(false)
    for i, loss in ipairs(plain_losses) do expect(losses[i]):to_equal_bits(loss) end
    for name, p in pairs(plain_state) do expect(state[name]):to_equal_bits(p) end
  end)
  it("leaves the random stream, the versions and the graph as they are without one", function()
    local model, step = make()
    amp.audit(model, step, quiet)
    local with = gb.get_rng_state()
    model, step = make()
    step(model)
    expect(with.offset):to_be(gb.get_rng_state().offset)
    local x = gb.ones(4):requires_grad_()
    local y
    amp.audit(model, function() y = x:exp() end, quiet)
    y:sum():backward() -- an error if anything had written to what was saved
    expect(x.grad):to_be_close({ math.exp(1), math.exp(1), math.exp(1), math.exp(1) }, 1e-6)
  end)
  it("prints a table, and a summary under it", function()
    local model, step = make()
    local printed = {}
    local real = print
    print = function(text) printed[#printed + 1] = text end -- luacheck: ignore
    local ok, report = pcall(amp.audit, model, step)
    print = real -- luacheck: ignore
    expect(ok):to_be(true)
    expect(#printed):to_be(1)
    expect(printed[1]):to_be(tostring(report))
    holds(printed[1], "audit of Sequential")
    holds(printed[1], "forward  [1] (Linear)")
    holds(printed[1], "lower f16")
    holds(printed[1], "advised")
    for line in printed[1]:gmatch("[^\n]+") do expect(#line <= 170):to_be(true) end
  end)
  -- what the audit itself ran was named, as the op of the recipe's line
  it("leaves the cause of a skip as it is without one", function()
    local function cause_of(audited)
      local w = nn.Parameter(gb.ones(3))
      local opt, scaler = optim.SGD({ w }, { lr = 0 }), amp.GradScaler()
      local function step_once()
        opt:zero_grad()
        scaler:scale((w * 1e38 * 1e38):sum()):backward()
        scaler:step(opt)
        scaler:update()
      end
      step_once()
      scaler:report() -- the first skip arms; this waits until it is known
      if audited then amp.audit(nn.Identity(), step_once, quiet) else step_once() end
      return select(2, scaler:report())
    end
    holds(cause_of(false), "mul (")
    expect(cause_of(true)):to_be(cause_of(false))
  end)
  it("prints custom functions and classes of any name", function()
    for _, name in ipairs { "50%", "[x", "a(b", "mul", ("long"):rep(40), ("ü"):rep(40) } do
      local twice = gb.Function { name = name, forward = function(_, x) return x * 2 end,
        backward = function(_, g) return g * 2 end }
      local report = amp.audit(nn.Identity(), function() twice(gb.ones(3):requires_grad_()):sum():backward() end, quiet)
      holds(tostring(report), name:sub(1, 30))
    end
  end)
  it("of recomputed activations says so", function()
    local model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    local report = amp.audit(model, function(m)
      local x = gb.ones(8, 8):requires_grad_()
      gb.recompute(m, x):sum():backward()
    end, quiet)
    expect(#rows_of(report, "linear", "forward")):to_be(1)
    local again = row_of(report, "linear", "recompute")
    expect(again.module):to_be("[1]")
    expect(row_of(report, "linear_backward").module):to_be("[1]")
  end)
  it("of a graph from before the audit has no module", function()
    local layer = nn.Linear(8, 8)
    local loss = layer(gb.ones(8, 8)):sum()
    local row = row_of(amp.audit(layer, function() loss:backward() end, quiet), "linear_backward")
    expect(row.module):to_be(nil)
    expect(row.line):to_be(nil)
    expect(row.of):to_be("linear")
  end)
  it("with a custom function belongs to the line that called it", function()
    local line
    local Double = gb.Function {
      forward = function(_, x) return x * 2 end,
      backward = function(_, g) return g * 2 end,
    }
    local report = amp.audit(nn.Identity(), function()
      local x = gb.ones(3):requires_grad_()
      line = line_here(1)
      local y = Double(x)
      y:sum():backward()
    end, quiet)
    local row = rows_of(report, "mul", "backward")[1]
    expect(row ~= nil and row.line ~= nil):to_be(true)
    expect(tonumber(row.line:match(":(%d+)$")) <= line):to_be(true)
  end)
end)

describe("its end", function()
  local layer = nn.Linear(8, 8)
  local function fine() expect(#amp.audit(layer, gb.ones(2, 8), quiet).rows):to_be(1) end

  it("comes with an error in the step, which is passed on", function()
    expect(function() amp.audit(layer, function() error("no step") end) end):to_fail("no step")
    fine()
    local ok, why = pcall(amp.audit, layer, function() error({ code = 5 }) end)
    expect(ok):to_be(false)
    expect(why.code):to_be(5)
    fine()
    expect(function() amp.audit(layer, function(m) m(gb.ones(2, 7)) end) end):to_fail("features")
    fine()
  end)
  it("comes with an interrupt", function()
    expect(function()
      amp.audit(layer, function(m)
        gb.interrupt()
        m(gb.ones(2, 8))
      end)
    end):to_fail("interrupted")
    gb.interrupt(false)
    fine()
  end)
  it("comes with the death of the coroutine that asked for it", function()
    local co = coroutine.create(function() amp.audit(layer, function() error("within") end) end)
    expect((coroutine.resume(co))):to_be(false)
    fine()
    co = coroutine.create(function() amp.audit(layer, function() coroutine.yield() end) end)
    local ok, why = coroutine.resume(co)
    expect(ok):to_be(false)
    expect(tostring(why):find("yield") ~= nil):to_be(true)
    fine()
    local wrapped = coroutine.wrap(function() amp.audit(layer, function() error("within") end) end)
    expect(function() wrapped() end):to_fail("within")
    fine()
  end)
  it("leaves coroutines inside the step alone", function()
    local report = amp.audit(layer, function(m)
      local co = coroutine.wrap(function()
        coroutine.yield(m(gb.ones(2, 8)))
        return m(gb.ones(4, 8))
      end)
      co()
      co()
    end, quiet)
    local linear = rows_of(report, "linear")
    expect(#linear):to_be(2)
    expect(linear[2].module):to_be("Linear")
  end)
  it("must come before another begins", function()
    local inner
    local report = amp.audit(layer, function(m)
      inner = select(2, pcall(amp.audit, m, gb.ones(2, 8)))
      m(gb.ones(2, 8))
    end, quiet)
    holds(inner, "audits do not nest")
    expect(row_of(report, "linear").module):to_be("Linear")
  end)
  it("is clear about wrong arguments", function()
    expect(function() amp.audit() end):to_fail("audit: 'model' is missing")
    expect(function() amp.audit(gb.ones(2)) end):to_fail("audit: 'model' must be a module of gb.nn, got a tensor")
    expect(function() amp.audit(layer) end):to_fail("audit: 'step' is missing")
    expect(function() amp.audit(layer, 3) end):to_fail("audit: 'step' must be a function or a tensor, got 3")
    expect(function() amp.audit(layer, gb.ones(2, 8), { precision = "15-mixed" }) end):to_fail("unknown precision")
    expect(function() amp.audit(layer, gb.ones(2, 8),
      { precision = "16-mixed", format = 1 }) end):to_fail("no option 'format'")
    expect(function() amp.audit(layer, gb.ones(2, 8), { print = 1 }) end):to_fail("must be true or false")
    fine()
  end)
end)

gb.test.finish()

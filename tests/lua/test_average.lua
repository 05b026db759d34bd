-- test_average.lua - averages of weights, groups without decay, and parameters as vectors, from a recipe's side.
-- (Their numbers are compared with PyTorch's in test_training.lua.)

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, optim, utils = gb.nn, gb.optim, gb.nn.utils

-- A model with one weight of this value.
local One = nn.Module:extend("One")
function One:init(value, dtype) self.w = nn.Parameter(gb.full({ 2 }, value, { dtype = dtype })) end
function One:forward(x) return x * self.w end

local function set(model, value) gb.no_grad(function() model.w:fill_(value) end) end
local function value_of(average) return average:state_dict().averages.w:tolist()[1] end

describe("an average", function()
  it("begins as the model and then counts every update alike", function()
    local model = One(4.0)
    local average = optim.Average(model)
    expect(tostring(average)):to_be("Average (1 tensors, 0 updates)")
    expect(value_of(average)):to_be(4.0)
    for _, v in ipairs { 1.0, 2.0, 6.0 } do
      set(model, v)
      average:update_parameters()
    end
    expect(value_of(average)):to_be_near(3, 1e-6)
    expect(average.n_averaged):to_be(3)
    expect(model.w:tolist()[1]):to_be(6.0)
  end)
  it("with a warmup forgets the beginning sooner", function()
    local model, expected = One(1.0), 1.0
    local average = optim.EMA(model, { decay = 0.5, warmup = true })
    average:update_parameters()
    for n = 1, 12 do
      set(model, 1.0 + n)
      average:update_parameters()
      local decay = math.min(0.5, (1 + n) / (10 + n))
      expected = decay * expected + (1 - decay) * (1.0 + n)
      expect(value_of(average)):to_be_near(expected, 1e-6)
    end
  end)
  it("of 16-bit weights keeps steps below their rounding", function()
    local model = One(1.0, "bfloat16")
    local average = optim.EMA(model, { decay = 0.999 })
    average:update_parameters()
    set(model, 2.0)
    for _ = 1, 100 do average:update_parameters() end
    expect(average:state_dict().averages.w.dtype):to_be("float32")
    expect(value_of(average)):to_be_near(2 - 0.999 ^ 100, 1e-5)
    average:copy_to()
    expect(model.w.dtype):to_be("bfloat16")
  end)
  it("stands in the model's place while it is applied, and lets go of it after an error or a close", function()
    local model = One(1.0)
    local average = optim.Average(model)
    set(model, 5.0)
    local x = gb.ones(2)
    expect(average:apply(function(y) return model(y):sum():item() end, x)):to_be(2.0)
    expect(model.w:tolist()[1]):to_be(5.0)
    expect(function() average:apply(function() error("boom") end) end):to_fail("boom")
    expect(model.w:tolist()[1]):to_be(5.0)
    local co = coroutine.create(function() average:apply(coroutine.yield) end)
    coroutine.resume(co)
    expect(model.w:tolist()[1]):to_be(1.0)
    expect(function() average:update_parameters() end):to_fail("wait until apply returns")
    expect(function() average:copy_to() end):to_fail("wait until apply returns")
    expect(function() average:apply(print) end):to_fail("wait until apply returns")
    expect(function() average:load_state_dict(average:state_dict()) end):to_fail("wait until apply returns")
    coroutine.close(co)
    expect(model.w:tolist()[1]):to_be(5.0)
    average:update_parameters()
  end)
  it("follows a model that an optimizer trains", function()
    local model = One(1.0)
    local opt, average = optim.SGD(model:parameters(), { lr = 0.5 }), optim.EMA(model, { decay = 0.5 })
    local expected
    for _ = 1, 4 do
      opt:zero_grad()
      model(gb.ones(2)):square():sum():backward()
      opt:step()
      average:update_parameters()
      local now = model.w:tolist()[1]
      expected = expected and 0.5 * expected + 0.5 * now or now
    end
    expect(value_of(average)):to_be_near(expected, 1e-6)
    local own = model.w:tolist()[1]
    average:apply(function() expect(model.w:tolist()[1]):to_be_near(expected, 1e-6) end)
    expect(model.w:tolist()[1]):to_be(own)
    opt:step()
  end)
  it("goes through a checkpoint", function()
    local path, model = os.tmpname(), One(1.0)
    local average, other = optim.EMA(model), optim.EMA(One(7.0))
    average:update_parameters()
    gb.io.save_checkpoint(path, { average = average })
    gb.io.load_checkpoint(path, { average = other })
    os.remove(path)
    expect(other.n_averaged):to_be(1)
    expect(value_of(other)):to_be(1.0)
  end)
  it("takes tied weights once, and another model of the same form", function()
    local model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[2].weight = model[1].weight
    expect(tostring(optim.Average(model))):to_be("Average (3 tensors, 0 updates)")
    local average, other = optim.Average(One(1.0)), One(3.0)
    average:update_parameters(other)
    expect(value_of(average)):to_be(3.0)
    average:copy_to(other)
  end)
  it("refuses other models, states and options", function()
    local average = optim.Average(One(1.0))
    expect(function() average:update_parameters(nn.Linear(2, 2)) end):to_fail("1 tensors are averaged, the model has 2")
    expect(function() average:update_parameters(nn.Linear(1, 2,
      { bias = false })) end):to_fail("weight (2x1) where w (2)")
    expect(function() optim.Average(nn.ReLU()) end):to_fail("the model has no parameters")
    expect(function() optim.Average(5) end):to_fail("'model' must be a module")
    expect(function() optim.EMA(One(1.0), { decay = 1.5 }) end):to_fail("'decay' must be from 0 to 1, got 1.5")
    expect(function() optim.EMA(One(1.0), { decay = 0 / 0 }) end):to_fail("'decay' must be")
    expect(function() optim.Average(One(1.0), { mode = "mean" }) end):to_fail("'swa' or 'ema'")
    for _, state in ipairs { {}, { n_averaged = -1, averages = {} }, { n_averaged = 1, averages = 5 } } do
      expect(function() average:load_state_dict(state) end):to_fail("n_averaged and averages")
    end
    expect(function() average:load_state_dict { n_averaged = 1, averages = {} } end):to_fail("no average of w")
    local wrong = { n_averaged = 1, averages = { w = gb.ones(3) } }
    expect(function() average:load_state_dict(wrong) end):to_fail("has shape 3 in the state, 2 here")
    expect(average.n_averaged):to_be(0)
  end)
  it("is not harmed by a function of the recipe", function()
    local model = nn.Linear(2, 2)
    local before = model.weight:detach():clone()
    local ends = {
      { function() error("boom") end, "boom" }, { function() end, "avg_fn must give a tensor, got a nil" },
      { function() return gb.ones(3) end, "avg_fn gave the shape 3" },
      { function(a) a:free() return a end, "was freed" },
      { function(_, current) current:free() return current end, "was freed" },
    }
    for _, row in ipairs(ends) do
      local average = optim.Average(model, { avg_fn = function(a, current, n)
        if a.ndim == 1 then return row[1](a, current, n) end
        return a * 0
      end })
      average:update_parameters()
      expect(function() average:update_parameters() end):to_fail(row[2])
      expect(average.n_averaged):to_be(1)
      expect(average:state_dict().averages.weight):to_equal_bits(before)
      expect(average:state_dict().averages.bias):to_equal_bits(model.bias:detach())
    end
    local deep
    deep = optim.Average(model, { avg_fn = function(a) deep:update_parameters() return a end })
    deep:update_parameters()
    expect(function() deep:update_parameters() end):to_fail("stack overflow")
  end)
end)

describe("update_bn", function()
  local function net() return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)) end
  it("takes a loader, a list or an iterator, and leaves modes and momenta as they were", function()
    gb.manual_seed(5)
    local model, x = net(), gb.rand(8, 3):cpu()
    model[2]:eval()
    model[2].momentum = 0.25
    local loader = gb.data.DataLoader(gb.data.TensorDataset(x, gb.arange(8):cpu()), { batch_size = 4 })
    local device, means = gb.get_default_device(), {}
    local parts, i = { x:narrow(1, 1, 4):to(device), x:narrow(1, 5, 4):to(device) }, 0
    local function iterator()
      i = i + 1
      return parts[i]
    end
    for k, given in ipairs { loader, parts, { { parts[1], 1 }, { parts[2], 2 } }, iterator } do
      expect(optim.update_bn(given, model, { device = device })):to_be(2)
      means[k] = model[2].running_mean:clone()
      expect(means[k]):to_equal_bits(means[1])
      expect(model[2].num_batches_tracked:item()):to_be(2)
    end
    expect(model[2].momentum):to_be(0.25)
    expect(model[2].training):to_be(false)
    expect(model.training):to_be(true)
    expect(model[1].weight.grad):to_be(nil)
  end)
  it("refuses what is no batch, and models without batch norms need none", function()
    local model = net()
    for _, bad in ipairs { { 5 }, { { "x" } }, function() return true end } do
      expect(function() optim.update_bn(bad, model) end):to_fail("its first value is the input, a tensor")
      expect(model[2].momentum):to_be(0.1)
    end
    expect(function() optim.update_bn(5, model) end):to_fail("'loader' must be")
    expect(function() optim.update_bn({ gb.ones(2, 9) }, model) end):to_fail("linear")
    expect(optim.update_bn({ 5 }, nn.Linear(1, 1))):to_be(0)
  end)
end)

describe("groups", function()
  local Mixed = nn.Module:extend("Mixed")
  function Mixed:init()
    self.embedding = nn.Embedding(4, 6)
    self.head = nn.Linear(6, 2)
    self.norm = nn.LayerNorm({ 2, 3 })
    self.scale = nn.Parameter(gb.tensor(1.0))
  end
  it("leave biases, norms of any rank and single numbers without decay", function()
    local groups = optim.groups(Mixed(), { weight_decay = 0.5 })
    expect(table.concat(groups[1].names, " ")):to_be("embedding.weight head.weight")
    expect(table.concat(groups[2].names, " ")):to_be("head.bias norm.weight norm.bias scale")
    local opt = optim.AdamW(groups, { lr = 0.25 })
    expect(opt.param_groups[1].weight_decay):to_be(0.5)
    expect(opt.param_groups[2].weight_decay):to_be(0.0)
    expect(opt.param_groups[2].lr):to_be(0.25)
    expect(opt:state_dict().state[1].name):to_be("embedding.weight")
  end)
  it("leave out by name, and out an empty group", function()
    local groups = optim.groups(Mixed(), { exclude = { "embedding" } })
    expect(table.concat(groups[1].names, " ")):to_be("head.weight")
    expect(groups[1].weight_decay):to_be(0.01)
    expect(#optim.groups(nn.Linear(2, 2, { bias = false }))):to_be(1)
    expect(#optim.groups(nn.LayerNorm(2))):to_be(1)
  end)
  it("refuse what makes no sense", function()
    expect(function() optim.groups(nn.ReLU()) end):to_fail("the model has no parameters")
    local function with(options) return function() optim.groups(Mixed(), options) end end
    expect(with { weight_decay = -1 }):to_fail("'weight_decay' must be 0 or more, got -1")
    expect(with { exclude = { 5 } }):to_fail("[1] is a number")
    expect(with { exclude = { "" } }):to_fail("[1] is empty")
    expect(function() optim.groups(5) end):to_fail("'model' must be a module")
  end)
end)

describe("parameters as a vector", function()
  it("have gradients, and take a vector that is their own", function()
    local a, b = nn.Parameter(gb.tensor { { 1.0, 2.0 } }), nn.Parameter(gb.tensor(3.0))
    local opt = optim.SGD({ a, b }, { lr = 1 })
    utils.parameters_to_vector({ a, b }):mul(gb.tensor { 1.0, 2.0, 3.0 }):sum():backward()
    expect(b.grad:item()):to_be(3.0)
    opt:step()
    expect(utils.parameters_to_vector({ a, b })):to_be_close({ 0, 0, 0 })
    utils.vector_to_parameters(gb.tensor { 7.0, 8.0, 9.0 }, { a, b })
    expect(a:reshape(2)):to_be_close({ 7, 8 })
    expect(b:item()):to_be(9.0)
    expect(a.requires_grad):to_be(true)
    utils.vector_to_parameters(a:detach():reshape(2), a)
    expect(a:reshape(2)):to_be_close({ 7, 8 })
  end)
  it("refuse other lengths", function()
    local p = nn.Parameter(gb.ones(2, 2))
    expect(function() utils.vector_to_parameters(gb.ones(3), { p }) end):to_fail("have 4 elements together, the vector")
    expect(function() utils.vector_to_parameters(gb.ones(2, 2), { p }) end):to_fail("has the shape 2x2")
    expect(function() utils.parameters_to_vector({}) end):to_fail("give model:parameters()")
    expect(function() utils.parameters_to_vector({ 5 }) end):to_fail("must hold tensors")
  end)
end)

describe("the norm of all gradients", function()
  it("is 0 of none, does not overflow in 16 bits, and can insist on being finite", function()
    expect(utils.get_total_norm({}):item()):to_be(0.0)
    expect(utils.get_total_norm(gb.tensor({ 300.0, 400.0 }, { dtype = "float16" })):item()):to_be_near(500, 1e-3)
    local mixed = { gb.tensor({ 3.0 }, { dtype = "float64" }), gb.tensor { 4.0 } }
    expect(utils.get_total_norm(mixed):item()):to_be_near(5, 1e-12)
    local bad = gb.tensor { 1.0, math.huge }
    expect(utils.get_total_norm(bad):item()):to_be(math.huge)
    expect(function() utils.get_total_norm(bad, 2,
      true) end):to_fail("the norm is inf; look for inf or NaN in the loss")
  end)
  it("clips each gradient once, where there is one", function()
    local a, b = nn.Parameter(gb.ones(2)), nn.Parameter(gb.ones(2))
    a.grad = gb.tensor { 3.0, 4.0 }
    utils.clip_grads_with_norm_({ a, b, a }, 1, 5)
    expect(a.grad):to_be_close({ 0.6, 0.8 }, 1e-6)
    expect(b.grad):to_be(nil)
    utils.clip_grads_with_norm_({ a }, 10, gb.tensor { 5.0 })
    expect(a.grad):to_be_close({ 0.6, 0.8 }, 1e-6)
  end)
  it("refuses what makes no sense", function()
    local p = nn.Parameter(gb.ones(2))
    expect(function() utils.get_total_norm({ gb.arange(3) }) end):to_fail("tensor 1 is of int64")
    for _, kind in ipairs { 0, -1, 0 / 0 } do
      expect(function() utils.get_total_norm({ p }, kind) end):to_fail("norm_type is")
    end
    expect(function() utils.clip_grads_with_norm_({ p }, -1, 1) end):to_fail("max_norm is -1")
    expect(function() utils.clip_grads_with_norm_({ p }, 1) end):to_fail("'total_norm' is missing")
    expect(function() utils.clip_grads_with_norm_({ p }, 1, gb.ones(3)) end):to_fail("total_norm has 3 elements")
  end)
end)

gb.test.finish()

-- test_training.lua - optimizers, schedules, layers, averages, norms and the scaler's arithmetic against numbers made
-- with PyTorch.
--
-- Optimizers are compared after 1, 5 and 20 steps: each step rounds a handful of times in float32, relative to the
-- parameter, so 2e-6 is some sixteen roundings. Layers sum at most a few hundred float32 products: 1e-5.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, optim, amp = gb.nn, gb.optim, gb.amp

local goldens = dofile("tests/lua/goldens.lua")

-- A tensor of a line, where tensors are made by default, or nil.
local function stored(row, name, ...)
  local text = row.tensors[name:format(...)]
  return text and goldens.tensor(text):to(gb.get_default_device())
end

-- The golden steps of an optimizer, in parameters of a dtype (start and gradients are exact in 16 bits). check(step, i,
-- parameter, optimizer). resumed: after the seventh step, all goes on in other parameters, from what was saved.
local function run_steps(row, dtype, resumed, check)
  local function t(name, ...) return stored(row, name, ...) end
  local params, opt = {}, nil
  local function begin(values)
    for i = 1, 2 do params[i] = nn.Parameter(values[i]) end
    opt = optim[row.kind](params, row.options)
  end
  begin { t("start0"):to(dtype):clone(), t("start1"):to(dtype):clone() }
  for step = 0, 19 do
    opt:zero_grad()
    for i = 0, 1 do
      local g = t("grad%d.%d", i, step)
      params[i + 1].grad = g and g:to(dtype == "float64" and dtype or "float32")
    end
    opt:step()
    for i = 0, 1 do check(step, i, params[i + 1], opt) end
    if resumed and step == 6 then
      local state = opt:state_dict()
      begin { params[1]:detach():clone(), params[2]:detach():clone() }
      opt:load_state_dict(state)
    end
  end
end

-- Muon's products are of bfloat16, which Newton and Schulz's iteration makes some 2^-6 of its result: with lr 0.02, and
-- the largest adjustment of it, within 20 * 0.02 * 2^-6. In float64 they are exact, and so is its golden.
local loose = { Muon = 20 * 0.02 * 2 ^ -6 }

describe("optimizers", function()
  for _, row in ipairs(goldens.read("training", { "optimizers" })) do
    it(row.name, function()
      run_steps(row, "float32", false, function(step, i, p)
        local after = stored(row, "after%d.%d", i, step)
        if after then expect(p):to_be_close(after, loose[row.kind] or 2e-6) end
      end)
    end)
    it(row.name .. " in float64", function()
      run_steps(row, "float64", true, function(step, i, p)
        local after = stored(row, "wide%d.%d", i, step)
        if after then expect(p):to_be_close(after, 1e-13) end
      end)
    end)
    for _, dtype in ipairs { "bfloat16", "float16" } do
      it(row.name .. " in " .. dtype, function()
        run_steps(row, dtype, true, function(step, i, p, opt)
          local after = stored(row, "after%d.%d", i, step)
          if not after then return end
          local master = opt:state_dict().state[i + 1].master
          expect(master):to_be_close(after, loose[row.kind] or 2e-6)
          expect(p:detach():clone()):to_equal_bits(master:to(dtype))
        end)
      end)
    end
  end
end)

-- Functions of a recipe by the names that rows have for them; tests/golden/training.py has the same.
local functions = {
  LAMBDAS = { function(t) return 0.95 ^ t end, function(t) return 1 / (1 + t) end },
  FACTORS = { function() return 0.95 end, function(t) return 1 - 1 / (t + 2) end },
  scale = function(x) return 0.5 * (1 + math.sin(x * math.pi / 2)) end,
}

-- The optimizer and the schedule of a row.
local function scheduled(row)
  local groups, options = {}, {}
  for i, rate in ipairs(row.lrs) do groups[i] = { params = { nn.Parameter(gb.zeros(1)) }, lr = rate } end
  local opt = optim[row.optimizer](groups, row.optimizer == "SGD" and { momentum = 0.95 } or {})
  for name, value in pairs(row.options) do options[name] = functions[value] or value end
  if options.schedules then
    options.schedules = {}
    for k, part in ipairs(row.options.schedules) do options.schedules[k] = optim.lr[part[1]](opt, part[2]) end
  end
  return opt, optim.lr[row.kind](opt, options)
end

-- The schedule stands where step t of the row does.
local function expect_step(row, opt, schedule, t)
  for i, rate in ipairs(row.rates[t]) do
    local group = opt.param_groups[i]
    expect(group.lr):to_be_near(rate, 1e-9 * math.max(1, rate))
    expect(schedule:get_last_lr()[i]):to_be(group.lr)
    if #row.momenta > 0 then
      expect(group.betas and group.betas[1] or group.momentum):to_be_near(row.momenta[t][i], 1e-9)
    end
  end
end

describe("schedules", function()
  for _, row in ipairs(goldens.read("training", { "schedules" })) do
    it(row.name, function()
      local opt, schedule = scheduled(row)
      local first, resumed, same = schedule.last_epoch, nil, nil
      for t = 1, #row.rates do
        expect(schedule.last_epoch):to_be(first + t - 1)
        expect_step(row, opt, schedule, t)
        if resumed then expect_step(row, same, resumed, t) end
        -- a schedule resumes from its state, with an optimizer of its own and with this one
        if t == #row.rates // 3 + 1 then
          same, resumed = scheduled(row)
          resumed:load_state_dict(gb.io.json_decode(gb.io.json_encode(schedule:state_dict())))
          expect(resumed.last_epoch):to_be(schedule.last_epoch)
          local state = schedule:state_dict()
          schedule:step(row.metrics[t])
          schedule:load_state_dict(state)
          expect_step(row, opt, schedule, t)
        end
        if t < #row.rates then
          schedule:step(row.metrics[t])
          if resumed then resumed:step(row.metrics[t]) end
        end
      end
    end)
  end
end)

local make = {
  Linear = function() return nn.Linear(5, 7) end,
  Conv2d = function() return nn.Conv2d(3, 6, 3, { padding = 1, stride = 2 }) end,
  BatchNorm2d = function() return nn.BatchNorm2d(3) end,
  LayerNorm = function() return nn.LayerNorm(6) end,
  RMSNorm = function() return nn.RMSNorm(6) end,
  Embedding = function() return nn.Embedding(9, 4) end,
  MultiheadAttention = function() return nn.MultiheadAttention(8, 2) end,
}

describe("layers", function()
  for _, row in ipairs(goldens.read("training", { "layers" })) do
    it(row.name, function()
      local layer = make[row.name]()
      local state = {}
      for name in pairs(row.tensors) do
        local weight = name:match("^weight%.(.+)$")
        if weight then state[weight] = stored(row, name) end
      end
      layer:load_state_dict(state)
      local x = stored(row, "in0")
      if x:is_floating_point() then x:requires_grad_() end
      local y = layer(x)
      expect(y):to_be_close(stored(row, "out"), 1e-5)
      y:backward(stored(row, "up"))
      if x:is_floating_point() then expect(x.grad):to_be_close(stored(row, "grad0"), 1e-5) end
      for name, p in layer:named_parameters() do expect(p.grad):to_be_close(stored(row, "dweight." .. name), 2e-5) end
      for name, b in layer:named_buffers() do expect(b):to_be_close(stored(row, "buffer." .. name), 1e-5) end
    end)
  end
end)

describe("the scaler's arithmetic", function()
  for _, row in ipairs(goldens.read("training", { "scalers" })) do
    it(row.name, function()
      local options = { min_scale = 0 }
      for name, value in pairs(row.options) do options[name] = value end
      local scaler = amp.GradScaler(options)
      local p = nn.Parameter(gb.ones(1))
      local opt = optim.SGD({ p }, { lr = 0 })
      for i, found in ipairs(row.found) do
        opt:zero_grad()
        local loss = (p * (found == 1 and math.huge or 0)):sum()
        scaler:scale(loss):backward()
        scaler:step(opt)
        scaler:update()
        expect(scaler:get_scale()):to_be(row.trace[i][1])
        expect(scaler:stats().growth_tracker):to_be(row.trace[i][2])
      end
    end)
  end
end)

-- Averages round a handful of times per update, relative to the weights.
describe("averages of weights", function()
  for _, row in ipairs(goldens.read("training", { "averages" })) do
    it(row.name, function()
      local model, options = nn.BatchNorm1d(4), { mode = row.mode }
      for name, value in pairs(row.options) do options[name] = value end
      if row.mode == "fn" then
        options.mode, options.avg_fn = nil, function(a, p, n) return a * 0.75 + p * (0.25 * n) end
      end
      local average = optim.Average(model, options)
      for step = 0, 4 do
        local state = {}
        for name in pairs(model:state_dict()) do state[name] = stored(row, "model.%s.%d", name, step) end
        model:load_state_dict(state)
        average:update_parameters()
        expect(average.n_averaged):to_be(step + 1)
        local averages, count = average:state_dict().averages, 0
        for name, value in pairs(averages) do
          -- a mean of counts, as PyTorch's, means nothing
          local kind = value:is_floating_point() and "average" or "model"
          expect(value):to_be_close(stored(row, kind .. ".%s.%d", name, step), 1e-6)
          count = count + 1
        end
        expect(count):to_be(row.options.use_buffers and 5 or 2)
        if step == 2 then -- an average goes on from its state
          local state_of_average = average:state_dict()
          average = optim.Average(nn.BatchNorm1d(4), options)
          average:load_state_dict(state_of_average)
          average:copy_to(model)
          average = optim.Average(model, options)
          average:load_state_dict(state_of_average)
        end
      end
      average:copy_to()
      local batches = {}
      for i = 1, 3 do batches[i] = stored(row, "batch%d", i - 1) end
      expect(optim.update_bn(batches, model)):to_be(3)
      for name, b in model:named_buffers() do expect(b):to_be_close(stored(row, "after.%s", name), 1e-5) end
    end)
  end
end)

describe("norms of all gradients", function()
  for _, row in ipairs(goldens.read("training", { "norms" })) do
    it(row.name, function()
      local params, grads = {}, {}
      for i = 1, 3 do
        grads[i] = stored(row, "grad%d", i - 1)
        params[i] = nn.Parameter(gb.zeros_like(grads[i]))
        params[i].grad = grads[i]:clone()
      end
      local vector = nn.utils.parameters_to_vector(grads)
      expect(vector):to_equal_bits(stored(row, "vector"))
      nn.utils.vector_to_parameters(vector, params)
      for i = 1, 3 do expect(params[i]:detach()):to_equal_bits(grads[i]) end
      local total = nn.utils.get_total_norm(grads, row.norm_type == "inf" and math.huge or row.norm_type)
      expect(total):to_be_close(stored(row, "total"), 1e-6)
      nn.utils.clip_grads_with_norm_(params, row.max_norm, total)
      for i = 1, 3 do expect(params[i].grad):to_be_close(stored(row, "clipped%d", i - 1), 1e-6) end
    end)
  end
end)

gb.test.finish()

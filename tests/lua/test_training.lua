-- test_training.lua - optimizers, schedules, layers and the scaler's arithmetic against numbers made with PyTorch.
--
-- Optimizers are compared after 1, 5 and 10 steps: each step rounds a handful of times in float32, relative to the parameter, so 2e-6 is
-- some sixteen roundings. Layers sum at most a few hundred float32 products: 1e-5.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, optim, amp = gb.nn, gb.optim, gb.amp

local goldens = dofile("tests/lua/goldens.lua")

-- A tensor of a line, where tensors are made by default, or nil.
local function stored(row, name, ...)
  local text = row.tensors[name:format(...)]
  return text and goldens.tensor(text):to(gb.get_default_device())
end

describe("optimizers", function()
  for _, row in ipairs(goldens.read("training", { "optimizers" })) do
    it(row.name, function()
      local function t(name, ...) return stored(row, name, ...) end
      local params = {}
      for i = 0, 1 do params[i + 1] = nn.Parameter(t("start%d", i):clone()) end
      local opt = optim[row.kind](params, row.options)
      for step = 0, 9 do
        opt:zero_grad()
        for i = 0, 1 do params[i + 1].grad = t("grad%d.%d", i, step) end
        opt:step()
        for i = 0, 1 do
          local after = t("after%d.%d", i, step)
          if after then expect(params[i + 1]):to_be_close(after, 2e-6) end
        end
      end
    end)
  end
end)

describe("schedules", function()
  for _, row in ipairs(goldens.read("training", { "schedules" })) do
    it(row.name, function()
      local opt = optim.SGD({ nn.Parameter(gb.zeros(1)) }, { lr = 0.5 })
      local schedule = optim.lr[row.kind](opt, row.options)
      for t, rate in ipairs(row.rates) do
        expect(opt.param_groups[1].lr):to_be_near(rate, 1e-9)
        if t == 3 then -- a schedule resumes from its state
          local state = schedule:state_dict()
          schedule:step()
          schedule:load_state_dict(state)
        end
        schedule:step()
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

gb.test.finish()

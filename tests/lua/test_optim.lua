-- test_optim.lua - optimizers from a recipe's side: groups, tied weights, parameters without a gradient, models that
-- move before and after, states that are saved, loaded and gone on from. (Their arithmetic is compared with PyTorch's
-- in test_training.lua.)

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, optim, F = gb.nn, gb.optim, gb.nn.functional

local kinds = { "SGD", "Adam", "AdamW", "Lion", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop",
  "ASGD", "LAMB", "LARS", "Adafactor" }
local no_decay = { Rprop = true }
local still = { Rprop = true, LARS = true } -- a gradient of zeros moves nothing
-- Options with which a kind has all of its states.
local whole = {
  SGD = { lr = 0.1, momentum = 0.9 }, Adam = { lr = 0.01, amsgrad = true }, AdamW = { lr = 0.01, amsgrad = true },
  LARS = { lr = 1, momentum = 0.9, weight_decay = 0.1 }, RMSprop = { lr = 0.01, momentum = 0.5, centered = true },
    Rprop = { lr = 0.01 },
}

local function parameter(...) return nn.Parameter(gb.tensor { ... }) end
local function values(p) return p:detach():clone() end

for _, kind in ipairs(kinds) do
  describe(kind, function()
    it("a nil gradient means untouched: no decay, no step, no state", function()
      local used, unused = parameter(1.0, 2.0), parameter(3.0, 4.0)
      local opt = optim[kind]({ used, unused }, { lr = 0.1, weight_decay = not no_decay[kind] and 0.5 or nil })
      local before = values(unused)
      for _ = 1, 3 do
        opt:zero_grad()
        used:square():sum():backward()
        opt:step()
      end
      expect(values(unused)):to_equal_bits(before)
      expect(unused.grad):to_be(nil)
      expect(opt:state_dict().state[2].steps):to_be(0)
      expect(opt:state_dict().state[1].steps):to_be(3)
      expect(used:lt(gb.tensor { 1.0, 2.0 }):all():item()):to_be(true)
      opt:zero_grad() -- a gradient of zeros is one: decay applies
      unused:mul(0):sum():backward()
      opt:step()
      expect(values(unused):eq(before):any():item()):to_be(still[kind] or false)
    end)
    it("a branch that is used now and then keeps its own count", function()
      local a, b = parameter(1.0), parameter(1.0)
      local opt = optim[kind]({ a, b }, { lr = 0.1 })
      for step = 1, 4 do
        opt:zero_grad()
        local loss = a:sum()
        if step % 2 == 0 then loss = loss + b:sum() end
        loss:backward()
        opt:step()
      end
      local state = opt:state_dict().state
      expect(state[1].steps):to_be(4)
      expect(state[2].steps):to_be(2)
    end)
    it("tied weights are one parameter, stepped once", function()
      local w = parameter(1.0, 2.0, 3.0)
      local tied = optim[kind]({ w, gb.nn.Parameter(w:detach()) }, { lr = 0.1 })
      local single = parameter(1.0, 2.0, 3.0)
      local plain = optim[kind]({ single }, { lr = 0.1 })
      for _ = 1, 3 do
        tied:zero_grad()
        w:square():sum():backward()
        tied:step()
        plain:zero_grad()
        single:square():sum():backward()
        plain:step()
      end
      expect(values(w)):to_equal_bits(values(single))
    end)
    it("refuses the same parameter twice in a list, with both positions", function()
      local v, w = parameter(1.0), parameter(1.0)
      expect(function() optim[kind]({ v, w, w }, { lr = 0.1 }) end):to_fail("parameters 2 and 3 of the list are the \z
        same tensor")
      expect(function() optim[kind]({ { params = { w, v, w } } },
        { lr = 0.1 }) end):to_fail("parameters 1 and 3 of the list are the same tensor")
      optim[kind]({ v, w }, { lr = 0.1 }) -- what was refused holds nothing
    end)
    it("two groups have their own options", function()
      local a, b = parameter(1.0), parameter(1.0)
      local opt = optim[kind]({ { params = { a }, lr = 0.5 }, { params = { b } } },
        { lr = 0.25, step_sizes = kind == "Rprop" and { 0, 50 } or nil }) -- the least of which is above 0
      expect(#opt.param_groups):to_be(2)
      expect(opt.param_groups[1].lr):to_be(0.5)
      expect(opt.param_groups[2].lr):to_be(0.25)
      opt.param_groups[2].lr = 0
      opt:zero_grad()
      a:add(b):sum():backward()
      opt:step()
      expect(a:item() < 1):to_be(true)
      expect(b:item()):to_be(1.0)
      local c = parameter(1.0)
      opt:add_param_group { params = { c }, lr = 0.125 }
      expect(opt.param_groups[3].lr):to_be(0.125)
      expect(opt.param_groups[3].params[1] == c):to_be(true)
    end)
    it("zero_grad makes every gradient nil; the first one after it is written, not added", function()
      local p = parameter(1.0, 1.0)
      local opt = optim[kind]({ p }, { lr = 0.1 })
      p:sum():backward()
      p:sum():backward()
      expect(p.grad):to_be_close({ 2, 2 })
      opt:zero_grad()
      expect(p.grad):to_be(nil)
      p:mul(5):sum():backward()
      expect(p.grad):to_be_close({ 5, 5 })
      p.grad = nil
      expect(p.grad):to_be(nil)
      p.grad = gb.tensor { 7.0, 8.0 }
      expect(p.grad):to_be_close({ 7, 8 })
    end)
    it("gradients from before adoption are kept", function()
      local p = parameter(1.0, 1.0)
      p:mul(3):sum():backward()
      optim[kind]({ p }, { lr = 0.1 })
      expect(p.grad):to_be_close({ 3, 3 })
    end)
    it("a state goes on with the same bits", function()
      local function new()
        gb.manual_seed(2)
        local net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        return net, optim[kind](net:parameters(), whole[kind] or { lr = 0.01, weight_decay = 0.1 }), gb.randn(16, 4)
      end
      local function steps(net, opt, x, n)
        for _ = 1, n do
          opt:zero_grad()
          net(x):square():mean():backward()
          opt:step()
        end
      end
      local net, opt, x = new()
      steps(net, opt, x, 4)
      local weights, state = {}, opt:state_dict()
      for name, t in pairs(net:state_dict()) do weights[name] = t:clone() end
      steps(net, opt, x, 6)
      local again, other = new()
      again:load_state_dict(weights) -- into adopted parameters
      other:load_state_dict(state)
      steps(again, other, x, 6)
      for i, p in ipairs(again:parameters()) do expect(values(p)):to_equal_bits(values(net:parameters()[i])) end
    end)
    it("keeps views and other handles of a parameter valid", function()
      local p = nn.Parameter(gb.ones(2, 3))
      local row = gb.no_grad(function() return p[1] end)
      local opt = optim[kind]({ p }, { lr = 0.5 })
      p:sum():backward()
      opt:step()
      expect(row):to_be_close(values(p)[1])
      gb.no_grad(function() row:fill_(9) end)
      expect(values(p)[{ 1, 2 }]:item()):to_be(9.0)
    end)
  end)
end

describe("defaults", function()
  local pytorch = {
    SGD = { lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0, nesterov = false },
    Adam = { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0, amsgrad = false },
    AdamW = { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0.01, amsgrad = false },
    RMSprop = { lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0, centered = false },
    Adagrad = { lr = 1e-2, lr_decay = 0, weight_decay = 0, initial_accumulator_value = 0, eps = 1e-10 },
    Adadelta = { lr = 1, rho = 0.9, eps = 1e-6, weight_decay = 0 },
    Adamax = { lr = 2e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0 },
    NAdam = { lr = 2e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0, momentum_decay = 4e-3,
      decoupled_weight_decay = false },
    RAdam = { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0, decoupled_weight_decay = false },
    Rprop = { lr = 1e-2, etas = { 0.5, 1.2 }, step_sizes = { 1e-6, 50 } },
    ASGD = { lr = 1e-2, lambd = 1e-4, alpha = 0.75, t0 = 1e6, weight_decay = 0 },
  }
  for kind, options in pairs(pytorch) do
    it("of " .. kind .. " are PyTorch's", function()
      local group = optim[kind]({ parameter(1.0) }).param_groups[1]
      for name, value in pairs(options) do
        local pair = type(value) == "table"
        for i = 1, pair and 2 or 1 do
          local got = pair and group[name][i] or group[name]
          if pair then expect(got):to_be(value[i]) else expect(got == value):to_be(true) end
        end
      end
      expect(group.maximize):to_be(false)
    end)
  end
end)

describe("long runs", function()
  it("of a centered RMSprop with one gradient do not end in NaN", function()
    local p = parameter(1.0, 1.0)
    local opt = optim.RMSprop({ p }, { centered = true, alpha = 0.5 })
    for _ = 1, 200 do
      p.grad = gb.tensor { 0.1, 3.3 }
      opt:step()
    end
    expect(values(p):isfinite():all():item()):to_be(true)
  end)
  it("of NAdam need no product of momenta", function()
    local p = parameter(1.0)
    local opt = optim.NAdam({ p }, { betas = { 0.99, 0.999 }, momentum_decay = 1 })
    local state = opt:state_dict()
    state.state[1].steps = 10 ^ 9 // 1 | 0
    opt:load_state_dict(state)
    p.grad = gb.tensor { 1.0 }
    opt:step()
    local root = math.sqrt(1 - 0.999) -- of an average that saw one gradient, uncorrected
    expect(values(p):item()):to_be_near(1 - 2e-3 * (0.01 * 1 + 0.99 * 0.01) / root, 1e-6)
  end)
end)

-- Each was once looked up among those before it, which nothing could interrupt: thirty times as long for each of these.
describe("a list of very many parameters", function()
  local function list_of(n)
    local list = {}
    for i = 1, n do
      list[i] = gb.ones(1, { device = "cpu" }):requires_grad_()
      list[i].grad = list[i]:detach()
    end
    return list
  end
  local tasks = {
    ["is taken by an optimizer"] = function(list) optim.SGD(list, { lr = 0.1 }):close() end,
    ["is clipped"] = function(list) gb.nn.utils.clip_grad_norm_(list, 1) end,
  }
  for name, task in pairs(tasks) do
    it(name .. " in about the same time for each of them", function()
      local function seconds_each(n)
        local list, least = list_of(n), math.huge
        for _ = 1, 3 do
          local before = os.clock()
          task(list)
          least = math.min(least, os.clock() - before)
        end
        return least / n
      end
      local few = seconds_each(2000)
      expect(seconds_each(64000) < 8 * few):to_be(true)
    end)
  end
end)

describe("norms of parameters", function()
  local function steps(kind, options, sizes, threads, clip)
    local before = gb.get_num_threads()
    gb.set_num_threads(threads)
    gb.manual_seed(3)
    local params = {}
    for i, size in ipairs(sizes) do params[i] = nn.Parameter(gb.randn(size)) end
    local opt = optim[kind](params, options)
    for _ = 1, 3 do
      opt:zero_grad()
      for i, p in ipairs(params) do
        local g = gb.randn(sizes[i])
        if i ~= 2 then p.grad = g end
      end
      if clip then nn.utils.clip_grad_norm_(params, clip) end
      opt:step()
    end
    gb.set_num_threads(before)
    return params
  end
  local sizes = { 40000, 70, 1, 3, 20000, 5000 }
  for kind, options in pairs { LAMB = { lr = 0.01 }, LARS = { lr = 0.1, momentum = 0.9, weight_decay = 0.1 } } do
    it(kind .. " has the same bits for any number of threads", function()
      local one, four = steps(kind, options, sizes, 1), steps(kind, options, sizes, 4)
      for i, p in ipairs(one) do expect(values(p)):to_equal_bits(values(four[i])) end
    end)
    it(kind .. " measures each parameter alone, wherever it lies", function()
      local all = steps(kind, options, sizes, 2)
      for i, p in ipairs(all) do
        gb.manual_seed(3)
        local start, gradients = nil, {}
        for k, size in ipairs(sizes) do
          local made = gb.randn(size)
          if k == i then start = made end
        end
        for step = 1, 3 do
          for k, size in ipairs(sizes) do
            local g = gb.randn(size)
            if k == i then gradients[step] = g end
          end
        end
        local alone = nn.Parameter(start)
        local opt = optim[kind]({ alone }, options)
        for step = 1, i == 2 and 0 or 3 do
          alone.grad = gradients[step]
          opt:step()
        end
        expect(values(p)):to_be_close(values(alone), 1e-6)
      end
    end)
  end
  it("of LAMB make a step of lr times the parameter's", function()
    local p = nn.Parameter(gb.ones(50000):mul_(2))
    local opt = optim.LAMB({ p }, { lr = 0.5, weight_decay = 0.1 })
    p.grad = gb.randn(50000)
    local before = values(p)
    opt:step()
    local moved = values(p):sub(before):double():square():sum():sqrt():item()
    expect(moved):to_be_near(0.5 * 2 * math.sqrt(50000), 1e-3)
  end)
  it("of 0 leave lr as it is", function()
    local p = parameter(0.0, 0.0)
    local opt = optim.LAMB({ p }, { lr = 0.5, eps = 0 })
    p.grad = gb.tensor { 1.0, -3.0 }
    opt:step()
    expect(p):to_be_close({ -0.5, 0.5 }, 1e-6)
    opt:close()
    opt = optim.LARS({ p }, { lr = 0.5, weight_decay = 0.1 })
    p.grad = gb.zeros(2)
    opt:step()
    expect(p):to_be_close({ -0.5, 0.5 }, 1e-6)
  end)
end)

describe("Muon", function()
  local function matrix(rows, columns) return nn.Parameter(gb.randn(rows, columns)) end
  it("has PyTorch's defaults", function()
    local group = optim.Muon({ matrix(2, 2) }).param_groups[1]
    local numbers = { lr = 1e-3, weight_decay = 0.1, momentum = 0.95, eps = 1e-7, ns_steps = 5 }
    for name, value in pairs(numbers) do expect(group[name] == value):to_be(true) end
    expect(group.nesterov):to_be(true)
    expect(group.maximize):to_be(false)
    expect(group.adjust_lr_fn):to_be("original")
    for i, value in ipairs { 3.4445, -4.7750, 2.0315 } do expect(group.ns_coefficients[i]):to_be(value) end
  end)
  it("steps by a matrix whose singular values are near 1, in any shape and size of gradient", function()
    gb.manual_seed(1)
    for _, size in ipairs { { 24, 8 }, { 8, 24 }, { 16, 16 } } do
      for _, scale in ipairs { 1e-6, 1, 1e6 } do
        local p = matrix(size[1], size[2])
        local opt, before = optim.Muon({ p }, { lr = 1, weight_decay = 0, adjust_lr_fn = "spectral_unclamped" }),
          values(p)
        p.grad = gb.randn(size[1], size[2]):mul(scale)
        opt:step()
        local x = before:sub(values(p)):mul(math.sqrt(size[2] / size[1]))
        local norm = x:square():sum():item() / math.min(size[1], size[2]) -- the mean of squared singular values
        expect(norm > 0.5 and norm < 1.4):to_be(true)
      end
    end
  end)
  it("refuses what is no matrix, by its name, and says who takes it", function()
    local net = nn.Linear(3, 2)
    expect(function() optim.Muon(net:parameters()) end):to_fail("bias has 1 dimensions; Muon steps matrices, so \z
      give this one to an optim.AdamW")
    expect(function() optim.Muon({ nn.Parameter(gb.ones(2, 2, 2)) }) end):to_fail("parameter 1 has 3 dimensions")
    local opt = optim.Muon({ net.weight }) -- what was refused holds nothing
    expect(function() opt:add_param_group { params = { net.bias } } end):to_fail("optim.AdamW")
    optim.AdamW({ net.bias })
  end)
  it("refuses options out of bounds", function()
    for name, wrong in pairs {
      momentum = { -0.1, 1.5 }, ns_steps = { 1.5, -1, 100, "5" },
        ns_coefficients = { { 1, 2 }, { 1, 2, 0 / 0 }, 5, { 1, 2, "3" } },
      adjust_lr_fn = { "other", "original|", 1, "" }, nesterov = { 1 }, eps = { -1 },
    } do
      for _, value in ipairs(wrong) do
        expect(function() optim.Muon({ matrix(2, 2) }, { [name] = value }) end):to_fail(name)
      end
    end
    expect(function() optim.Muon({ matrix(2, 2) },
      { adjust_lr_fn = "other" }) end):to_fail("original|match_rms_adamw|spectral_unclamped")
    local opt = optim.Muon({ matrix(2, 2) })
    opt.param_groups[1].adjust_lr_fn = "match_rms_adamw"
    expect(opt.param_groups[1].adjust_lr_fn):to_be("match_rms_adamw")
    local state = opt:state_dict()
    state.groups[1].adjust_lr_fn = "original"
    opt:load_state_dict(state)
    expect(opt.param_groups[1].adjust_lr_fn):to_be("original")
  end)
  for _, dtype in ipairs { "float32", "float16", "bfloat16" } do
    it("skips an overflow whole, clips alike in and before the step, and goes on from its state, in " .. dtype,
      function()
      local function run(inside, resumed)
        gb.manual_seed(5)
        local params = { nn.Parameter(gb.randn(6, 4):to(dtype)), nn.Parameter(gb.randn(3, 8):to(dtype)) }
        local options = { lr = 0.125, weight_decay = 0.5 }
        local opt, scaler = optim.Muon(params, options), gb.amp.GradScaler { init_scale = 64 }
        for step = 1, 6 do
          opt:zero_grad()
          local loss = params[1]:to("float32"):square():sum() + params[2]:to("float32"):sin():sum()
          if step == 3 then loss = loss * math.huge end
          scaler:scale(loss):backward()
          local before, buffer = values(params[1]), opt:state_dict().state[1].momentum_buffer
          if inside then scaler:step(opt, { clip = 0.5 })
          else
            scaler:unscale_(opt)
            nn.utils.clip_grad_norm_(params, 0.5)
            scaler:step(opt)
          end
          scaler:update()
          if step == 3 then
            expect(params[1]:detach()):to_equal_bits(before)
            expect(opt:state_dict().state[1].momentum_buffer):to_equal_bits(buffer)
          end
          if resumed and step == 4 then
            local state = opt:state_dict()
            expect(state.state[1].update):to_be(nil)
            params = { nn.Parameter(values(params[1])), nn.Parameter(values(params[2])) }
            opt = optim.Muon(params, options)
            opt:load_state_dict(state)
          end
        end
        expect(opt:state_dict().state[1].steps):to_be(5)
        expect(opt:state_dict().state[1].master ~= nil):to_be(dtype ~= "float32")
        return params
      end
      local one = run(false, false)
      for _, other in ipairs { run(true, false), run(true, true) } do
        for i, p in ipairs(one) do expect(values(p)):to_equal_bits(values(other[i])) end
      end
    end)
  end
  it("leaves a parameter without a gradient alone, and takes one of zeros and one without elements", function()
    local used, unused, empty = matrix(2, 3), matrix(2, 3), nn.Parameter(gb.zeros(0, 3))
    local opt, before = optim.Muon({ used, unused, empty }, { lr = 0.5, weight_decay = 1 }),
      { values(used), values(unused) }
    used.grad, empty.grad = gb.zeros(2, 3), gb.zeros(0, 3)
    opt:step()
    expect(used):to_be_close(before[1]:mul(0.5), 1e-6)
    expect(values(unused)):to_equal_bits(before[2])
    expect(opt:state_dict().state[2].steps):to_be(0)
  end)
  it("has the same bits under autocast", function()
    local function run(cast)
      gb.manual_seed(6)
      local p = matrix(4, 4)
      local opt = optim.Muon({ p })
      p.grad = gb.randn(4, 4)
      if cast then gb.amp.autocast({ dtype = "float16" }, function() opt:step() end) else opt:step() end
      return p
    end
    expect(values(run(true))):to_equal_bits(values(run(false)))
    expect(run(true).requires_grad):to_be(true)
  end)
end)

describe("Adafactor", function()
  local function of(...) return nn.Parameter(gb.randn(...)) end
  it("has PyTorch's defaults, and bounds", function()
    local group = optim.Adafactor({ of(2, 2) }).param_groups[1]
    for name, value in pairs { lr = 1e-2, beta2_decay = -0.8, d = 1, weight_decay = 0 } do
      expect(group[name] == value):to_be(true)
    end
    expect(group.eps[2]):to_be(1e-3)
    local refused = { beta2_decay = { 0.1, 0 / 0 }, d = { 0.5 }, eps = { { -1, 0 }, 1, { 1 } }, lr = { -1 } }
    for name, wrong in pairs(refused) do
      for _, value in ipairs(wrong) do
        expect(function() optim.Adafactor({ of(2, 2) }, { [name] = value }) end):to_fail(name)
      end
    end
  end)
  it("keeps rows and columns of matrices, and all of what is none", function()
    local opt = optim.Adafactor { of(300, 200), of(2, 3, 4), of(5), nn.Parameter(gb.tensor(1.0)),
      nn.Parameter(gb.zeros(0, 3)) }
    local state = opt:state_dict().state
    local function shapes(i)
      local text = {}
      for name, t in pairs(state[i]) do
        if gb.is_tensor(t) then text[#text + 1] = name .. " " .. table.concat(t.shape, "x") end
      end
      table.sort(text)
      return table.concat(text, ", ")
    end
    expect(shapes(1)):to_be("col_var 1x200, row_var 300x1")
    expect(shapes(2)):to_be("col_var 2x1x4, row_var 2x3x1")
    expect(shapes(3)):to_be("variance 5")
    expect(shapes(4)):to_be("variance ")
    expect(shapes(5)):to_be("col_var 1x3, row_var 0x1")
  end)
  for _, dtype in ipairs { "float32", "float16", "bfloat16" } do
    it("skips an overflow whole, clips alike in and before the step, and goes on from its state, in " .. dtype,
      function()
      local function run(inside, resumed)
        gb.manual_seed(5)
        local params = { nn.Parameter(gb.randn(6, 4):to(dtype)), nn.Parameter(gb.randn(7):to(dtype)) }
        local opt, scaler = optim.Adafactor(params, { lr = 0.125 }), gb.amp.GradScaler { init_scale = 64 }
        for step = 1, 6 do
          opt:zero_grad()
          local loss = params[1]:to("float32"):square():sum() + params[2]:to("float32"):sin():sum()
          if step == 3 then loss = loss * math.huge end
          scaler:scale(loss):backward()
          local before, state = values(params[1]), opt:state_dict().state
          if inside then scaler:step(opt, { clip = 0.5 })
          else
            scaler:unscale_(opt)
            nn.utils.clip_grad_norm_(params, 0.5)
            scaler:step(opt)
          end
          scaler:update()
          if step == 3 then
            local now = opt:state_dict().state
            expect(params[1]:detach()):to_equal_bits(before)
            for _, name in ipairs { "row_var", "col_var" } do
              expect(now[1][name]):to_equal_bits(state[1][name])
            end
            expect(now[2].variance):to_equal_bits(state[2].variance)
          end
          if resumed and step == 4 then
            state = opt:state_dict()
            params = { nn.Parameter(values(params[1])), nn.Parameter(values(params[2])) }
            opt = optim.Adafactor(params, { lr = 0.125 })
            opt:load_state_dict(state)
          end
        end
        expect(opt:state_dict().state[1].steps):to_be(5)
        return params
      end
      local one = run(false, false)
      for _, other in ipairs { run(true, false), run(true, true) } do
        for i, p in ipairs(one) do expect(values(p)):to_equal_bits(values(other[i])) end
      end
    end)
  end
  it("leaves the factors of a parameter without a gradient alone", function()
    local used, unused = of(3, 4), of(4, 3)
    local opt = optim.Adafactor({ used, unused }, { lr = 0.5, weight_decay = 1 })
    used.grad, unused.grad = gb.randn(3, 4), gb.randn(4, 3)
    opt:step()
    local before, state = values(unused), opt:state_dict().state[2]
    opt:zero_grad()
    used.grad = gb.randn(3, 4)
    opt:step()
    local now = opt:state_dict().state[2]
    expect(values(unused)):to_equal_bits(before)
    expect(now.row_var):to_equal_bits(state.row_var)
    expect(now.col_var):to_equal_bits(state.col_var)
    expect(now.steps):to_be(1)
  end)
  it("takes gradients whose squares leave the range of float32", function()
    for _, size in ipairs { 1e-30, 1e18 } do
      local p = nn.Parameter(gb.ones(8, 8))
      local opt = optim.Adafactor({ p }, { lr = 0.1 })
      for _ = 1, 3 do
        p.grad = gb.full({ 8, 8 }, size)
        opt:step()
      end
      expect(values(p):isfinite():all():item()):to_be(true)
      if size > 1 then expect(values(p):lt(0.9):all():item()):to_be(true) end
    end
  end)
  it("has the same bits under autocast, and refuses a state of other shapes", function()
    local function run(cast)
      gb.manual_seed(6)
      local p = of(4, 4)
      local opt = optim.Adafactor { p }
      p.grad = gb.randn(4, 4)
      if cast then gb.amp.autocast({ dtype = "float16" }, function() opt:step() end) else opt:step() end
      return p, opt
    end
    local p, opt = run(true)
    expect(values(p)):to_equal_bits(values(run(false)))
    local state = opt:state_dict()
    state.state[1].row_var = gb.zeros(4, 4)
    expect(function() opt:load_state_dict(state) end):to_fail("row_var of parameter 1 has shape 4x4")
  end)
end)

describe("Lion", function()
  it("has the paper's defaults", function()
    local group = optim.Lion({ parameter(1.0) }).param_groups[1]
    expect(group.lr):to_be(1e-4)
    expect(group.betas[1]):to_be(0.9)
    expect(group.betas[2]):to_be(0.99)
    expect(group.weight_decay):to_be(0.0)
    expect(group.maximize):to_be(false)
  end)
  it("moves by lr whatever the size of a gradient, not at all for 0, and shows NaN", function()
    local p = parameter(1.0, 1.0, 1.0, 1.0)
    local opt = optim.Lion({ p }, { lr = 0.25 })
    p.grad = gb.tensor { 1e-30, -1e30, 0.0, 0 / 0 }
    opt:step()
    local after = values(p):tolist()
    expect(after[1]):to_be(0.75)
    expect(after[2]):to_be(1.25)
    expect(after[3]):to_be(1.0)
    expect(after[4] ~= after[4]):to_be(true)
  end)
  for _, dtype in ipairs { "float16", "bfloat16" } do
    it("collects steps below the rounding of " .. dtype .. " in the master, and skips those with an overflow",
      function()
      local p = nn.Parameter(gb.ones(3):to(dtype))
      local opt, scaler = optim.Lion({ p }, { lr = 2 ^ -12 }), gb.amp.GradScaler { init_scale = 4 }
      for step = 1, 17 do
        opt:zero_grad()
        local loss = p:to("float32"):sum()
        if step == 5 then loss = loss * math.huge end
        scaler:scale(loss):backward()
        scaler:step(opt)
        scaler:update()
      end
      local state = opt:state_dict().state[1]
      expect(state.steps):to_be(16)
      expect(state.master:tolist()[1]):to_be(1 - 16 * 2 ^ -12)
      expect(values(p):to("float32"):tolist()[1]):to_be(1 - 2 ^ -8)
    end)
  end
end)

describe("moving a model", function()
  it("before an optimizer adopts it works, after it is an error that says what to do", function()
    local net = nn.Linear(3, 2):to("float64")
    expect(net.weight.dtype):to_be("float64")
    local opt = optim.SGD(net:parameters(), { lr = 0.1 })
    net(gb.ones(1, 3, { dtype = "float64" })):sum():backward()
    opt:step()
    expect(function() net:to("float32") end):to_fail("optimizer")
    expect(net.weight.dtype):to_be("float64")
    net:to("float64")
    net:to(net.weight.device)
  end)
  it("an optimizer that is gone lets its parameters go", function()
    local net = nn.Linear(3, 2)
    do
      local opt = optim.SGD(net:parameters(), { lr = 0.1 })
      opt:zero_grad()
    end
    collectgarbage()
    collectgarbage()
    net:to("float64")
    expect(net.weight.dtype):to_be("float64")
    local opt = optim.Adam(net:parameters(), { lr = 0.1 })
    net(gb.ones(1, 3, { dtype = "float64" })):sum():backward()
    opt:step()
  end)
  it("load_state_dict into adopted parameters is seen by the optimizer", function()
    local net = nn.Linear(2, 1, { bias = false })
    local opt = optim.SGD(net:parameters(), { lr = 1 })
    net:load_state_dict { weight = gb.tensor { { 5.0, 6.0 } } }
    net.weight:sum():backward()
    opt:step()
    expect(values(net.weight)):to_be_close({ 4, 5 })
  end)
  it("a new value by a recipe's hand, for 16-bit parameters with masters too", function()
    local p = nn.Parameter(gb.ones(3, { dtype = "bfloat16" }))
    local opt = optim.SGD({ p }, { lr = 2 ^ -10 })
    gb.no_grad(function() p:fill_(8) end)
    p:float():sum():backward()
    opt:step()
    expect(opt:state_dict().state[1].master):to_be_close({ 8 - 2 ^ -10, 8 - 2 ^ -10, 8 - 2 ^ -10 }, 1e-7)
  end)
end)

describe("refuses", function()
  it("parameters that are none", function()
    local p = parameter(1.0)
    expect(function() optim.SGD({}, { lr = 0.1 }) end):to_fail("empty")
    expect(function() optim.SGD(nil, { lr = 0.1 }) end):to_fail("params")
    expect(function() optim.SGD(5) end):to_fail("params")
    expect(function() optim.SGD({ 5 }) end):to_fail("parameters")
    expect(function() optim.SGD({ p:mul(2) }) end):to_fail("leaves")
    expect(function() optim.SGD({ gb.arange(3) }) end):to_fail("int64")
    local opt = optim.SGD({ p })
    expect(function() opt:add_param_group { params = { p } } end):to_fail("already")
    expect(function() optim.Adam({ p }) end):to_fail("already")
    expect(function() opt:add_param_group {} end):to_fail("params")
    expect(function() opt:add_param_group() end):to_fail("group")
  end)
  it("options that are none", function()
    local function with(options) return function() optim.AdamW({ parameter(1.0) }, options) end end
    expect(with { lrr = 1 }):to_fail("lr")
    expect(with { lr = -1 }):to_fail("lr")
    expect(with { lr = 0 / 0 }):to_fail("lr")
    expect(with { lr = "1" }):to_fail("lr")
    expect(with { betas = 0.9 }):to_fail("betas")
    expect(with { betas = { 0.9, 1 } }):to_fail("betas")
    expect(with { betas = { 0.9 } }):to_fail("betas")
    expect(with { eps = -1 }):to_fail("eps")
    expect(with { weight_decay = -1 }):to_fail("weight_decay")
    expect(with { maximize = 5 }):to_fail("maximize")
    expect(with(5)):to_fail("option")
    local out_of_bounds = {
      LAMB = { betas = { 0.9, 1 }, use_nvlamb = 1 }, LARS = { trust_coefficient = -1, nesterov = true, momentum = -1 },
      RMSprop = { alpha = 1.5, eps = -1, momentum = -1, centered = 1 }, Adadelta = { rho = 1.1, eps = -1e-6 },
      Adagrad = { lr_decay = -1, initial_accumulator_value = -1, eps = 0 / 0 },
        Adamax = { betas = { 0.9, 1 }, eps = -1 },
      NAdam = { momentum_decay = -1, decoupled_weight_decay = 0 }, RAdam = { betas = { -0.1, 0.9 }, eps = math.huge },
      Rprop = { etas = { 1, 1.2 }, step_sizes = { 2, 1 } }, ASGD = { lambd = -1, alpha = -1, t0 = -1 },
        Adam = { amsgrad = "yes" },
    }
    for kind, options in pairs(out_of_bounds) do
      for name, value in pairs(options) do
        expect(function() optim[kind]({ parameter(1.0) }, { [name] = value }) end):to_fail(name)
      end
    end
    optim.Adadelta({ parameter(1.0) }, { rho = 1 }):close()
    local opt = optim.SGD({ parameter(1.0) }, { lr = 0.1 })
    expect(function() opt.param_groups[1].lr = -1 end):to_fail("lr")
    expect(function() opt.param_groups[1].nonsense = 1 end):to_fail("nonsense")
    expect(opt.param_groups[1].lr):to_be(0.1)
  end)
  it("options of another optimizer, naming the nearest of its own", function()
    local foreign = { SGD = { betas = { 0.9, 0.99 }, eps = 1e-8 },
      Adam = { momentum = 0.9, dampening = 0.1, nesterov = true } }
    foreign.AdamW, foreign.Lion = foreign.Adam, { eps = 1e-8, momentum = 0.9 }
    foreign.RMSprop, foreign.Rprop, foreign.ASGD = { betas = { 0.9, 0.99 } }, { weight_decay = 0.1 }, { momentum = 0.9 }
    for kind, options in pairs(foreign) do
      for name, value in pairs(options) do
        expect(function() optim[kind]({ parameter(1.0) },
          { [name] = value }) end):to_fail(("%s: unknown option '%s'"):format(kind, name))
        local opt = optim[kind]({ parameter(1.0) })
        expect(function() opt:add_param_group { params = { parameter(1.0) }, [name] = value } end):to_fail(name)
        expect(function() opt.param_groups[1][name] = value end):to_fail(name)
        expect(opt.param_groups[1][name]):to_be(nil)
      end
    end
    local function nearest(kind, name) return function() optim[kind]({ parameter(1.0) }, { [name] = 0.5 }) end end
    expect(nearest("SGD", "momentun")):to_fail("did you mean 'momentum'?")
    expect(nearest("SGD", "nestrov")):to_fail("did you mean 'nesterov'?")
    expect(nearest("Adam", "beta")):to_fail("did you mean 'betas'?")
    expect(nearest("AdamW", "weight_decy")):to_fail("did you mean 'weight_decay'?")
  end)
  it("states of something else", function()
    local sgd, adam = optim.SGD({ parameter(1.0) }, { momentum = 0.9 }), optim.Adam({ parameter(1.0) })
    expect(function() adam:load_state_dict(sgd:state_dict()) end):to_fail("SGD")
    expect(function() optim.Adam({ parameter(1.0),
      parameter(2.0) }):load_state_dict(adam:state_dict()) end):to_fail("parameters")
    local state = adam:state_dict()
    state.state[1].exp_avg = nil
    expect(function() adam:load_state_dict(state) end):to_fail("exp_avg")
    for _, steps in ipairs { -1, math.maxinteger, (1 << 53) + 1, 0 / 0, 1.5, "1" } do
      state = adam:state_dict()
      state.state[1].steps = steps
      expect(function() adam:load_state_dict(state) end):to_fail("number of steps from 0 to 2^53")
    end
    expect(function() adam:load_state_dict() end):to_fail("load_state_dict")
    expect(function() adam:load_state_dict {} end):to_fail("load_state_dict")
  end)
  it("states with a part that is none, and keeps all of its own", function()
    local opt = optim.Adam({ parameter(1.0) }, { lr = 0.5 })
    local function with(change)
      local state = opt:state_dict()
      state.groups[1].lr, state.state[1].exp_avg = 0.25, gb.ones(1):mul(9):reshape(state.state[1].exp_avg.shape)
      change(state)
      return function() opt:load_state_dict(state) end
    end
    expect(with(function(s) s.groups[1].eps = -1 end)):to_fail("eps")
    expect(with(function(s) s.groups[1].betas = { 0.5, 2 } end)):to_fail("betas")
    expect(with(function(s) s.groups[1].maximize = "x" end)):to_fail("maximize")
    expect(with(function(s) s.groups[1] = 5 end)):to_fail("group 1")
    expect(with(function(s) s.state[1].steps = -1 end)):to_fail("steps")
    expect(with(function(s) s.state[1].steps = "3" end)):to_fail("steps")
    expect(with(function(s) s.state[1] = 5 end)):to_fail("parameter 1")
    expect(opt.param_groups[1].lr):to_be(0.5)
    expect(opt:state_dict().state[1].exp_avg:abs():sum():item()):to_be(0.0)
    local schedule = optim.lr.Constant(opt)
    for _, bad in ipairs { { count = -1 }, { count = 1.5 }, {}, { count = 1, base = 5 }, { count = 1, base = { -1 } },
      { count = 1, base = { "x" } } } do
      expect(function() schedule:load_state_dict(bad) end):to_fail("schedule")
    end
    expect(schedule:state_dict().count):to_be(0)
    expect(opt.param_groups[1].lr):to_be(0.5)
  end)
  it("schedules of something else", function()
    local opt = optim.SGD({ parameter(1.0) }, { lr = 1 })
    expect(function() optim.lr.Cosine(opt) end):to_fail("steps")
    expect(function() optim.lr.Cosine(opt, { step = 5 }) end):to_fail("steps")
    expect(function() optim.lr.Linear(opt, { steps = "x" }) end):to_fail("steps")
    expect(function() optim.lr.Constant(5) end):to_fail("optimizer")
    expect(function() optim.lr.Constant(opt, { warmup = -1 }) end):to_fail("warmup")
    for _, decay in ipairs { 0, -1, 6, 0 / 0 } do
      expect(function() optim.lr.WarmupStableDecay(opt,
        { steps = 5, decay_steps = decay }) end):to_fail("'decay_steps' must be above 0 and at most")
    end
    expect(function() optim.lr.WarmupStableDecay(opt,
      { steps = 5, shape = "sqrt" }) end):to_fail("'linear', 'cosine' or '1-sqrt'")
    expect(opt.param_groups[1].lr):to_be(1.0)
  end)
end)

describe("clipping", function()
  it("norms of 1, 2, infinity, as PyTorch's", function()
    for _, row in ipairs { { 1, 14 }, { 2, math.sqrt(9 + 16 + 49) }, { math.huge, 7 } } do
      local a, b = parameter(0.0, 0.0), parameter(0.0)
      a.grad, b.grad = gb.tensor { 3.0, -4.0 }, gb.tensor { 7.0 }
      local norm = nn.utils.clip_grad_norm_({ a, b }, 1.0, row[1])
      expect(norm):to_be_near(row[2], 1e-6)
      expect(a.grad[1]:item()):to_be_near(3 / (row[2] + 1e-6), 1e-5)
    end
  end)
  it("leaves small gradients and nil ones alone", function()
    local a, b = parameter(0.0), parameter(0.0)
    a.grad = gb.tensor { 0.5 }
    expect(nn.utils.clip_grad_norm_({ a, b }, 1.0)):to_be_near(0.5, 1e-6)
    expect(a.grad:item()):to_be(0.5)
    expect(b.grad):to_be(nil)
    expect(nn.utils.clip_grad_norm_({ b }, 1.0)):to_be_near(0, 1e-12)
    nn.utils.clip_grad_value_({ a, b }, 0.25)
    expect(a.grad:item()):to_be(0.25)
  end)
  it("adopted and free parameters alike, of any dtype", function()
    local free, adopted, half = parameter(0.0), parameter(0.0), nn.Parameter(gb.zeros(1, { dtype = "float16" }))
    optim.SGD({ adopted }, {})
    free.grad, adopted.grad, half.grad = gb.tensor { 3.0 }, gb.tensor { 4.0 },
      gb.tensor({ 12.0 }, { dtype = "float16" })
    expect(nn.utils.clip_grad_norm_({ free, adopted, half }, 6.5)):to_be_near(13, 1e-5)
    expect(free.grad:item()):to_be_near(1.5, 1e-5)
    expect(adopted.grad:item()):to_be_near(2, 1e-5)
    expect(half.grad:item()):to_be_near(6, 1e-3)
  end)
  it("refuses what makes no sense", function()
    local p = parameter(1.0)
    expect(function() nn.utils.clip_grad_norm_({ p }) end):to_fail("max_norm")
    expect(function() nn.utils.clip_grad_norm_({ p }, -1) end):to_fail("max_norm")
    expect(function() nn.utils.clip_grad_norm_({ p }, 1, 0) end):to_fail("norm")
    expect(function() nn.utils.clip_grad_norm_(5, 1) end):to_fail("parameters")
    expect(function() nn.utils.clip_grad_value_({ p }, "a") end):to_fail("value")
    expect(function() nn.utils.clip_grad_value_({ p }, -1) end):to_fail("value")
  end)
end)

describe("the linear with a tied head", function()
  it("trains as two uses of one parameter", function()
    gb.manual_seed(3)
    local embedding = nn.Embedding(7, 5)
    local head = nn.Linear(5, 7, { bias = false })
    head.weight = embedding.weight
    local model = nn.Module:extend("Tied")()
    model.embedding, model.head = embedding, head
    expect(#model:parameters()):to_be(1)
    local ids = gb.tensor { 1, 2, 3 }
    local function loss() return F.cross_entropy(head(embedding(ids)), ids) end
    local free = gb.grad(loss(), embedding.weight)
    local opt = optim.AdamW(model:parameters(), { lr = 0.01 })
    loss():backward()
    expect(embedding.weight.grad):to_be_close(free, 1e-6)
    local first = loss():item()
    for _ = 1, 30 do
      opt:zero_grad()
      loss():backward()
      opt:step()
    end
    expect(loss():item() < first):to_be(true)
  end)
end)

gb.test.finish()

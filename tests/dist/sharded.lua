-- sharded.lua - optimizers whose states are shared out: the weights, and the states that they save, have the bits of
-- the whole optimizer, on every rank of every job, also where a run goes on from them. On the device that
-- GIBBOUS_TEST_DEVICE names.

local gb = require "gibbous"
local nn, F, dist, optim = gb.nn, gb.nn.functional, gb.dist, gb.optim
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
if not dist.is_initialized() then dist.init { timeout = 60 } end
local size = dist.world_size()
local device = os.getenv "GIBBOUS_TEST_DEVICE" or "cpu"
local here = { device = device }

-- clip_grad_norm_, as a number.
local function clip_norm(...)
  local norm = nn.utils.clip_grad_norm_(...)
  return gb.is_tensor(norm) and norm:item() or norm
end

local function net()
  return nn.Sequential(nn.Linear(7, 233), nn.GELU(), nn.Linear(233, 265), nn.ReLU(), nn.Linear(265, 3))
end

local function expect_same(a, b)
  expect(type(a)):to_be(type(b))
  if gb.is_tensor(a) then expect(a:detach()):to_equal_bits(b:detach())
  elseif type(a) == "table" then
    for key, value in pairs(a) do expect_same(value, b[key]) end
    for key in pairs(b) do expect(a[key] ~= nil):to_be(true) end
  else expect(a):to_be(b) end
end

local makers = {
  SGD = { momentum = 0.9, lr = 0.05 }, AdamW = { lr = 0.01, amsgrad = true }, Adam = { lr = 0.01, weight_decay = 0.1 },
}

-- Go on from what was saved, if there is anything.
local function go_on(model, opt, from)
  if not from then return end
  model:load_state_dict(from.model)
  opt:load_state_dict(from.opt)
  gb.set_rng_state(table.unpack(from.rng))
end

-- Some steps, with a skipped one where the loss is scaled. share: how gradients are shared out, or false.
local function train(kind, precision, steps, share, from)
  gb.manual_seed(7)
  local setting = gb.amp.precision(precision)
  local model = net():to(device):to(setting)
  local ddp = nn.parallel.DataParallel(model)
  local opt = optim[kind]({ { params = model[1]:parameters(), lr = 0.02 },
    { params = { model[3].weight, model[3].bias, model[5].weight, model[5].bias } } }, makers[kind])
  go_on(model, opt, from)
  if share then expect(optim.Sharded(opt, { gradients = share }) == opt):to_be(true) end
  local norms = {}
  local scaler = gb.amp.GradScaler(setting)
  for step = 1, steps do
    opt:zero_grad()
    for xs, ys in ddp:shards(gb.randn(16, 7, here), gb.randint(0, 3, { 16 }, here)) do
      local loss = gb.amp.autocast(setting, function() return F.cross_entropy(ddp(xs):to("float32"), ys) end)
      if precision == "16-mixed" and step == 2 then loss = loss * 1e38 * 1e3 end
      scaler:scale(loss):backward()
    end
    if step % 4 == 3 then
      scaler:unscale_(opt)
      norms[#norms + 1] = clip_norm(model:parameters(), 0.1, step == 3 and 2 or math.huge)
    end
    if step % 2 == 0 then scaler:step(opt, { clip = 0.1 }) else scaler:step(opt) end
    norms[#norms + 1] = scaler:report() -- the names of those that overflowed
    scaler:update()
  end
  local state = { model = model:state_dict(), norms = norms, opt = opt:state_dict(), rng = { gb.get_rng_state() } }
  for name, t in pairs(state.model) do state.model[name] = t:clone() end
  opt:zero_grad()
  if share then opt:step() end -- goes on after it was saved
  opt:close()
  return state
end

describe("Sharded", function()
  for _, case in ipairs { { "SGD", "32-true" }, { "Adam", "bf16-mixed" }, { "AdamW", "bf16-true" },
    { "AdamW", "16-mixed" }, { "LAMB", "32-true" }, { "LAMB", "16-mixed" }, { "LARS", "bf16-true" } } do
    it("has the bits of " .. table.concat(case, " in "), function()
      local whole = train(case[1], case[2], 4)
      expect_same(train(case[1], case[2], 4, "parts"), whole)
      expect_same(train(case[1], case[2], 4, "whole"), whole)
    end)
  end

  -- Steps of an optimizer that works on whole parameters, with a skip, a clip, and one without a gradient.
  local function shaped(kind, precision, steps, options, from)
    gb.manual_seed(9)
    local setting = gb.amp.precision(precision)
    local model, unused = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 200), nn.Linear(200, 3),
      nn.Linear(3, 2)):to(device):to(setting), nn.Linear(5, 6):to(device).weight
    local ddp = nn.parallel.DataParallel(model)
    local list = { model[1].weight, unused, model[3].weight, model[4].weight, model[5].weight }
    for i, layer in ipairs { model[1], model[3], model[4], model[5] } do
      if kind == "Adafactor" then list[5 + i] = layer.bias end
    end
    local opt = optim[kind](list, { lr = 0.02 })
    go_on(model, opt, from)
    if options then optim.Sharded(opt, options) end
    local scaler, norms = gb.amp.GradScaler(setting), {}
    for step = 1, steps do
      opt:zero_grad()
      for xs in ddp:shards(gb.randn(16, 30, here)) do
        local loss = gb.amp.autocast(setting, function() return ddp(xs):to("float32"):square():mean() end)
        if precision == "16-mixed" and step == 2 then loss = loss * 1e38 * 1e3 end
        scaler:scale(loss):backward()
      end
      if step == 3 then
        scaler:unscale_(opt)
        norms[1] = clip_norm(list, 0.1)
      end
      scaler:step(opt)
      scaler:update()
    end
    local held = gb.memory_stats().current.optimizer
    local state = { opt = opt:state_dict(), model = model:state_dict(), norms = norms, rng = { gb.get_rng_state() } }
    for name, t in pairs(state.model) do state.model[name] = t:clone() end
    opt:zero_grad()
    for _, p in ipairs(list) do p.grad = gb.ones_like(p:detach()) end
    opt:step() -- it is still shared out
    opt:close()
    return state, held
  end

  for _, case in ipairs { { "Muon", "32-true" }, { "Muon", "bf16-mixed" }, { "Muon", "bf16-true" },
    { "Adafactor", "32-true" }, { "Adafactor", "16-mixed" } } do
    it("steps whole matrices with the bits of " .. table.concat(case, " in "), function()
      local whole = shaped(case[1], case[2], 4)
      expect_same(shaped(case[1], case[2], 4, {}), whole)
      expect_same(shaped(case[1], case[2], 4, { weights = "whole" }), whole)
      expect_same(shaped(case[1], case[2], 2, {}, (shaped(case[1], case[2], 2, {}))),
        shaped(case[1], case[2], 2, nil, (shaped(case[1], case[2], 2))))
    end)
  end

  it("shares out matrices by what they cost", function()
    local list = {}
    for i = 1, 8 do list[i] = nn.Linear(64, 64):to(device).weight end
    local opt = optim.Muon(list)
    local function step()
      for _, p in ipairs(list) do p.grad = gb.ones(64, 64, here) end
      opt:step()
    end
    step()
    collectgarbage()
    local before = gb.memory_stats().current.optimizer
    optim.Sharded(opt)
    collectgarbage()
    local freed = before - gb.memory_stats().current.optimizer
    local first, last = 8 * dist.rank() // size, 8 * (dist.rank() + 1) // size
    if size == 3 then first, last = table.unpack(({ { 0, 3 }, { 3, 5 }, { 5, 8 } })[dist.rank() + 1]) end
    if size > 1 and device ~= "cpu" then freed = freed + 256 end -- where a part counts its steps
    expect(freed):to_be((8 - (last - first)) * 64 * 64 * 4)
    local sent = dist.stats().bytes_sent
    step()
    sent = dist.stats().bytes_sent - sent
    local shares = dist.all_reduce(gb.tensor({ sent }, { dtype = "int64" }))
    expect(shares:item()):to_be((size - 1) * 8 * 64 * 64 * 4)
  end)

  it("goes on from a state, sharded or not", function()
    local half, whole = train("AdamW", "32-true", 2), train("AdamW", "32-true", 2)
    expect_same(half, whole)
    local on = train("AdamW", "32-true", 3, false, half)
    expect_same(train("AdamW", "32-true", 3, "parts", train("AdamW", "32-true", 2, "parts")), on)
  end)

  it("brings each process the gradients of its part, and sends half as much", function()
    local function gradients(share)
      gb.manual_seed(5)
      local ddp = nn.parallel.DataParallel(nn.Sequential(nn.Linear(1100, 1000), nn.Tanh(),
        nn.Linear(1000, 20)):to(device))
      local frozen = nn.Linear(20, 30):to(device) -- in the optimizer, and not in what is wrapped
      local opt = optim.SGD({ ddp.module[1].weight, frozen.weight, ddp.module[1].bias, ddp.module[3].weight },
        { lr = 1 })
      if share then optim.Sharded(opt, { gradients = share }) end
      local x, before = gb.randn(9, 1100, here), dist.stats().bytes_sent
      for xs in ddp:shards(x) do ddp(xs):square():mean():backward() end
      local sent, grads = dist.stats().bytes_sent - before, {}
      for i, p in ipairs(ddp.module:parameters()) do grads[i] = p.grad:clone() end
      for xs in ddp:shards(x) do ddp(xs):square():mean():backward() end -- added to what is there
      grads[#grads + 1] = ddp.module[1].weight.grad * 0.5 -- the same numbers twice
      frozen.weight.grad = gb.ones(30, 20, here)
      return grads, sent, clip_norm({ frozen.weight, ddp.module[3].weight }, 1),
        clip_norm(ddp.module:parameters(), 1, 3)
    end
    local whole, all, norm, third = gradients()
    local parts, sent, same, same_third = gradients("parts")
    expect(same):to_be(norm)
    expect(same_third):to_be(third)
    for i, grad in ipairs(parts) do
      local mine = size == 1 and whole[i] or gb.where(grad:ne(0), whole[i], grad)
      expect(grad):to_equal_bits(mine)
      local sum = dist.all_reduce(grad:clone()) -- each element is on one process, but for the last bias, which is whole
      if i == 4 then sum = grad end
      expect(sum):to_equal_bits(whole[i])
    end
    expect(parts[5]):to_equal_bits(parts[1])
    if size == 1 then return end
    -- Three processes with eight shards own five nodes of the tree: these become one by three messages at least. To
    -- bring the sum to all takes two more.
    local bytes, edges, more = (1100 * 1000 + 1000 + 20000 + 20) * 4, size == 3 and 3 or size - 1, size - 1
    local total = dist.all_reduce(gb.tensor({ sent, all }, { dtype = "int64" })):tolist()
    expect(total[1] < bytes * edges * 1.01 + 4000 * size * size):to_be(true)
    expect(total[2] > bytes * (edges + more) * 0.99):to_be(true)
    expect(total[2] < bytes * (edges + more) * 1.01 + 8000 * size * size):to_be(true)
    if size ~= 3 then expect(sent < bytes * edges / size * 1.02 + 4000 * size):to_be(true) end
  end)

  -- The norms and reports of four steps, and the weights. change: what is done to gradients first.
  local function norms_of(share, samples, change, unused)
    gb.manual_seed(5)
    local first, last = nn.Linear(200, 300), nn.Linear(300, 5)
    local ddp = nn.parallel.DataParallel(nn.ModuleList { first, unused and nn.Linear(3, 3) or nn.Identity(),
      last }:to(device))
    local opt = optim.SGD(ddp.module:parameters(), { lr = 0.1 })
    if share then optim.Sharded(opt) end
    local scaler, norms = gb.amp.GradScaler { init_scale = 8.0 }, {}
    for step = 1, 4 do
      opt:zero_grad()
      for _ = 1, step == 3 and 2 or 1 do -- in the third step a batch is added to another
        ddp:backward(function(x) return scaler:scale(last(gb.tanh(first(x))):square():mean()) end,
          gb.randn(samples, 200, here))
      end
      if change then change(first.weight.grad, step) end
      scaler:unscale_(opt)
      norms[#norms + 1] = clip_norm(ddp.module:parameters(), 0.5)
      scaler:step(opt)
      scaler:update()
      norms[#norms + 1] = scaler:report()
    end
    return norms, ddp.module:state_dict()
  end

  for _, case in ipairs { { "of a whole batch", 16 }, { "of a batch that leaves shards empty", 3 },
    { "where a parameter is not used", 16, nil, true },
    { "that were changed afterwards", 16, function(grad, step) if step > 1 then grad:mul_(3) end end },
    { "that became infinite", 16, function(grad, step) if step == 3 then grad:fill_(math.huge) end end } } do
    it("measures gradients " .. case[1] .. " with the same bits", function()
      local whole, weights = norms_of(false, table.unpack(case, 2, 4))
      local norms, same = norms_of(true, table.unpack(case, 2, 4))
      expect_same(norms, whole)
      expect_same(same, weights)
    end)
  end

  -- More parameters than one pass of a GPU takes, and a long one after the short ones; some without a gradient.
  it("measures many short parameters beside a long one", function()
    local function run(share)
      gb.manual_seed(5)
      local list, weights = {}, {}
      for i = 1, 140 do list[i] = nn.Parameter(gb.randn(1 + 37 * i % 300, here)) end
      list[141] = nn.Parameter(gb.randn(300, 200, here))
      for i = 142, 150 do list[i] = nn.Parameter(gb.randn(3, here)) end
      local function loss_of(x)
        local sum = x:matmul(list[141]:square()):mean()
        for i, p in ipairs(list) do
          if i ~= 141 and i % 9 ~= 0 then sum = sum + (x[1][1] * p):square():sum() end
        end
        return sum
      end
      local ddp = nn.parallel.DataParallel(nn.ParameterList(list))
      local opt = optim.AdamW(list, { lr = 0.01 })
      if share then optim.Sharded(opt) end
      local scaler, results = gb.amp.GradScaler { init_scale = 4.0 }, {}
      for step = 1, 4 do
        opt:zero_grad()
        for xs in ddp:shards(gb.randn(8, 300, here)) do
          scaler:scale(step == 3 and loss_of(xs) * 1e38 * 1e38 or loss_of(xs)):backward()
        end
        if step ~= 2 then
          scaler:unscale_(opt)
          results[#results + 1] = ("%a"):format(clip_norm(list, 0.5, step == 4 and math.huge or 2))
          scaler:step(opt)
        else scaler:step(opt, { clip = 0.5 }) end
        scaler:update()
        results[#results + 1] = scaler:report()
      end
      for _, p in ipairs(list) do weights[#weights + 1] = p:detach():clone() end
      return results, weights
    end
    local whole, weights = run()
    local results, same = run(true)
    expect_same(results, whole)
    expect_same(same, weights)
  end)

  -- One whose gradient stays whole, since it is not contiguous, and one that the recipe sums up by itself.
  it("measures gradients that stay whole, and leaves alone those of others than the model's", function()
    local function run(share, overflow)
      gb.manual_seed(5)
      local parts, whole = nn.Parameter(gb.randn(200, 300, here)), nn.Parameter(gb.randn(50, 300, here):t())
      local other = nn.Parameter(gb.randn(300, 200, here))
      local ddp = nn.parallel.DataParallel(nn.ParameterList { parts, whole })
      local opt = optim.AdamW({ parts, whole, other }, { lr = 0.01 })
      if share then optim.Sharded(opt) end
      local scaler, results = gb.amp.GradScaler { init_scale = 8.0 }, {}
      for step = 1, 4 do
        opt:zero_grad()
        ddp:backward(function(x)
          local y = gb.tanh(x:matmul(parts)):matmul(other):square():mean()
          local z = whole:square():mean()
          return scaler:scale(y + (overflow and step == 3 and z * 1e38 * 1e3 or z))
        end, gb.randn(16, 200, here))
        if size > 1 then dist.all_reduce(other.grad) end
        scaler:unscale_(opt)
        results[#results + 1] = ("%a"):format(clip_norm({ parts, whole, other }, 10))
        scaler:step(opt)
        scaler:update()
        results[#results + 1] = scaler:report()
        results[#results + 1] = scaler:get_scale()
      end
      for _, p in ipairs { parts, whole, other } do results[#results + 1] = p:detach():clone() end
      return results
    end
    for _, overflow in ipairs { false, true } do expect_same(run(true, overflow), run(false, overflow)) end
  end)

  it("asks the others for norms once, and then they come with the gradients", function()
    gb.manual_seed(5)
    local ddp = nn.parallel.DataParallel(nn.Linear(300, 400):to(device))
    local _ <const> = optim.Sharded(optim.SGD(ddp.module:parameters(), { lr = 0.1 }))
    local function messages(clip)
      ddp:backward(function(x) return ddp(x):square():mean() end, gb.randn(16, 300, here))
      local before = dist.stats().messages_sent
      clip()
      return dist.stats().messages_sent - before
    end
    local function by_norm() clip_norm(ddp.module:parameters(), 1e-3) end
    expect(messages(by_norm) > 0):to_be(size > 1)
    expect(messages(by_norm)):to_be(0)
    local again = messages(function() -- of gradients that were written since
      by_norm()
      by_norm()
    end)
    expect(again > 0):to_be(size > 1)
    local third = messages(function() clip_norm(ddp.module:parameters(), 1, 3) end)
    expect(third > 0):to_be(size > 1)
  end)

  it("bears an optimizer that ends, or saves, while gradients are made", function()
    for _, act in ipairs { "close", "state_dict" } do
      gb.manual_seed(5)
      local ddp = nn.parallel.DataParallel(nn.Linear(300, 400):to(device))
      local opt = optim.Sharded(optim.SGD(ddp.module:parameters(), { lr = 0.1, momentum = 0.9 }))
      local norms, x = {}, gb.randn(16, 300, here)
      for step = 1, 3 do
        opt:zero_grad()
        local acted
        for xs in ddp:shards(x) do
          ddp(xs):square():mean():backward()
          if step == 3 and not acted then acted = opt[act](opt) or true end
        end
        norms[step] = clip_norm(ddp.module:parameters(), 1e9)
      end
      if act == "state_dict" then expect(norms[3]):to_be(norms[1]) end
      expect(norms[2]):to_be(norms[1])
      ddp.module.weight.grad = nil
    end
  end)

  -- Steps in bf16-mixed: the weights, what the last step sent beside gradients, and where it ended.
  local function narrow(steps, options, from)
    gb.manual_seed(5)
    local body = nn.Sequential(nn.Linear(500, 600), nn.LayerNorm(600), nn.Linear(600, 20)):to(device)
    local ddp, head = nn.parallel.DataParallel(body), nn.Linear(3, 3):to(device) -- which nothing uses for three steps
    local opt = optim.AdamW({ body[1].weight, head.weight, body[1].bias, body[2].weight, body[2].bias, body[3].weight,
      body[3].bias }, { lr = 0.01 })
    go_on(body, opt, from)
    if options then optim.Sharded(opt, options) end
    local sent
    for step = 1, steps do
      opt:zero_grad()
      for xs in ddp:shards(gb.randn(16, 500, here)) do
        gb.amp.autocast("bf16-mixed", function() return ddp(xs):float():square():mean() end):backward()
      end
      if step > 3 then head.weight.grad = gb.ones(3, 3, here) end
      sent = dist.stats().bytes_sent
      opt:step()
      sent = dist.stats().bytes_sent - sent
    end
    return body, opt, sent, head
  end

  it("brings together in 16 bits what compute reads in 16 bits", function()
    local plain, _, _, unused = narrow(5)
    local whole, whole_opt, all = narrow(5, { weights = "whole" })
    local body, opt, sent, head = narrow(5, { weights = "needed" })
    expect(body[2].weight):to_equal_bits(plain[2].weight)
    expect(head.weight):to_equal_bits(unused.weight) -- not seen to be read in 16 bits
    if size > 1 then -- two bytes for each weight of the linears, four for those of the norm
      local numel = 500 * 600 + 600 + 600 * 20 + 20
      local total = dist.all_reduce(gb.tensor({ sent, all }, { dtype = "int64" })):tolist()
      expect(total[1]):to_be((size - 1) * (2 * numel + 4 * (2 * 600 + 9)))
      expect(total[2] >= (size - 1) * 4 * (numel + 1200)):to_be(true)
      local file = os.tmpname()
      local _ <close> = setmetatable({}, { __close = function() os.remove(file) end })
      for _, read in ipairs { function() return body[1].weight:sum() end, function() return tostring(body[3].bias) end,
        function() body[1].bias:detach():zero_() end, function() return body[1].weight:tolist() end,
        function() gb.save(file, body:state_dict()) end, function() return body(gb.rand(2, 500, here)) end,
        function() gb.amp.autocast("16-mixed", function() return body(gb.rand(2, 500, here)) end) end } do
        expect(read):to_fail("optimizer:gather()")
      end
    end
    expect(gb.amp.autocast("bf16-mixed", function() return body(gb.ones(2, 500, here)) end)):to_equal_bits(
      gb.amp.autocast("bf16-mixed", function() return plain(gb.ones(2, 500, here)) end))
    opt:gather()
    opt:gather()
    whole_opt:gather()
    expect_same(body:state_dict(), plain:state_dict())
    expect_same(whole:state_dict(), plain:state_dict())
  end)

  it("loses weights that are elsewhere with the optimizer that could bring them together", function()
    local body = narrow(3, { weights = "needed" })
    collectgarbage()
    collectgarbage()
    for _, read in ipairs { function() return body[1].weight:sum() end,
      function() return gb.amp.autocast("bf16-mixed", function() return body(gb.ones(2, 500, here)) end) end,
      function() return optim.SGD(body:parameters(), { lr = 1 }) end } do
      if size > 1 then expect(read):to_fail("shared out between the processes") else read() end
    end
    expect(body[2].weight:sum().ndim):to_be(0) -- of the norm, which came in float32
    nn.parallel.DataParallel(nn.Linear(2, 2)) -- the job goes on
  end)

  it("goes on from a state that was shared out in 16 bits", function()
    local on, body, opt = narrow(5), narrow(3, { weights = "needed" })
    local from = { opt = opt:state_dict(), model = body:state_dict(), rng = { gb.get_rng_state() } }
    expect_same(narrow(2, { weights = "needed" }, from):state_dict(), on:state_dict())
    local x = gb.randn(16, 500, here) -- the state is still shared out after it was read
    gb.amp.autocast("bf16-mixed", function() return body(x):float():square():mean() end):backward()
    opt:step()
    if size > 1 then expect(function() return body[1].weight:sum() end):to_fail("gather()") end
    opt:close()
    if size > 1 then expect(function() return body[1].weight:sum() end):to_fail("gather()") end
  end)

  it("measures gradients as a whole in Lua too, and refuses to count a part", function()
    local function run(share)
      gb.manual_seed(3)
      local ddp = nn.parallel.DataParallel(nn.Sequential(nn.Linear(9, 3000), nn.Tanh(),
        nn.Linear(3000, 20)):to(device))
      local params = ddp.module:parameters()
      params[5] = nn.Linear(3, 2):to(device).weight:double():detach():requires_grad_() -- a slab of its own
      params[6] = nn.Linear(3, 2):to(device).weight -- in no optimizer
      local opt = optim.SGD({ params[1], params[2], params[3], params[4], params[5] }, { lr = 0.1 })
      if share then optim.Sharded(opt, { gradients = share }) end
      local results = {}
      for _ = 1, 2 do
        opt:zero_grad()
        for xs in ddp:shards(gb.randn(16, 9, here)) do ddp(xs):square():mean():backward() end
        params[5].grad, params[6].grad = gb.ones(2, 3, { dtype = "float64", device = device }), gb.ones(2, 3, here)
        local grads = {}
        for i, p in ipairs(params) do grads[i] = p.grad end
        grads[7] = params[3].grad:t():narrow(1, 1000, 1500):select(2, 3)
        for _, kind in ipairs { 2, 3, math.huge } do
          results[#results + 1] = nn.utils.get_total_norm(grads, kind)
        end
        results[#results + 1] = nn.utils.get_total_norm(params[1].grad:detach())
        nn.utils.clip_grads_with_norm_(params, 0.01, results[1])
        opt:step()
      end
      for i = 1, 4 do results[#results + 1] = params[i]:detach():clone() end
      return results, params, ddp.module, opt
    end
    local whole = run()
    expect_same(run("whole"), whole)
    local parts, params, model, opt = run("parts")
    expect_same(parts, whole)
    if size == 1 then return end
    for _, x in ipairs { model, { w = params[1] }, params[1].grad, params[3].grad[1], { params[1].grad } } do
      expect(function() gb.amp.numerics(x) end):to_fail('{ gradients = "whole" }')
    end
    expect(gb.amp.numerics(params[1]:detach()).numel):to_be(27000)
    expect(gb.amp.numerics({ params[6] })[1].grad.numel):to_be(6)
    expect(gb.amp.numerics(params[1].grad:clone()).numel):to_be(27000)
    opt:close() -- it was there until now
  end)

  it("holds a part of the states", function()
    local layer = nn.Linear(1024, 1024):to(device)
    local opt = optim.Adam(layer:parameters())
    for _, p in ipairs(layer:parameters()) do p.grad = gb.ones_like(p:detach()) end
    opt:step()
    collectgarbage()
    local before = gb.memory_stats().current.optimizer
    optim.Sharded(opt)
    collectgarbage()
    if size > 1 then expect(gb.memory_stats().current.optimizer < before // size + 2 * 4 * 2 ^ 14):to_be(true) end
    expect(function() if size > 1 then optim.Sharded(opt) else error("already") end end):to_fail("already")
  end)

  it("measures parameters that several parts of a process hold", function()
    local function run(share)
      gb.manual_seed(5)
      local long, short = nn.Parameter(gb.randn(1100, 1000, here)), nn.Parameter(gb.randn(3, 5, here))
      local opt = optim.LAMB({ { params = { long }, lr = 0.1 }, { params = { short } } }, { weight_decay = 0.01 })
      if share then optim.Sharded(opt) end
      local sent
      for step = 1, 2 do
        long.grad = gb.rand(1100, 1000, here)
        if step > 1 then short.grad = gb.rand(3, 5, here) end
        sent = dist.stats().messages_sent
        opt:step()
        sent = dist.stats().messages_sent - sent
      end
      return { long:detach():clone(), short:detach():clone() }, sent
    end
    local whole = run(false)
    local parts, sent = run(true)
    expect_same(parts, whole)
    -- Each rank its weights of two blocks, one of them the short ones, and measures.
    local all = dist.all_reduce(gb.tensor({ sent }, { dtype = "int64" })):item()
    if size == 2 then expect(all):to_be(2 * (2 + 1) + 1) end
  end)

  it("refuses parameters that come later", function()
    local opt = optim.Sharded(optim.SGD({ nn.Parameter(gb.ones(4, here)) }, { lr = 1 }))
    local function add() opt:add_param_group { params = { nn.Parameter(gb.ones(2, here)) } } end
    if size > 1 then expect(add):to_fail("before gb.optim.Sharded") else add() end
  end)
  it("refuses what looks at all parameters together", function()
    local weight = nn.Linear(4, 4).weight
    expect(function() optim.Sharded(optim.LBFGS({ weight })) end):to_fail("LBFGS looks at all parameters")
  end)
end)

gb.test.finish()

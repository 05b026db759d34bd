-- test_hostile.lua - recipes that do their worst: tables with metatables that must not be asked, weak tables whose
-- values may go at any time, functions of Lua taken away, objects that are closed or freed from within, and methods of
-- one kind called on another.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local amp, nn = gb.amp, gb.nn
local type, pairs, next, pcall, error = type, pairs, next, pcall, error -- some are taken away

-- The same entries in a table whose metatable must not be asked.
local function trap(entries)
  local function touched() error("touched") end
  return setmetatable(entries, { __index = touched, __newindex = touched, __len = touched, __pairs = touched,
    __call = nil })
end

-- The same entries in a table that keeps none of them alive.
local function weak(entries) return setmetatable(entries, { __mode = "kv" }) end

-- Run fn while the collector works as hard as it can.
local function collecting(fn)
  local mode = collectgarbage("incremental", 0, 1000)
  local ok, why = pcall(fn)
  collectgarbage(mode)
  if not ok then error(why, 0) end
end

-- Run fn with print silenced; what it printed.
local function silently(fn)
  local lines, old = {}, print
  _G.print = function(text) lines[#lines + 1] = tostring(text) end
  local ok, why = pcall(fn)
  _G.print = old
  if not ok then error(why, 0) end
  return table.concat(lines, "\n")
end

local function model() return nn.Sequential(nn.Linear(4, 4), nn.ReLU()) end
local cuda = gb.cuda.is_available()

-- What takes tables of a recipe: { name, function of what makes a table of entries }.
local takers = {
  { "policy", function(t) amp.policy(t { t { "0", "float32" } }):apply(model()) end },
  { "numerics of tensors", function(t) tostring(amp.numerics(t { a = gb.rand(100), b = gb.rand(100) })) end },
  { "options of numerics", function(t) amp.numerics(gb.rand(4), t { format = "bfloat16" }) end },
  { "progress", function(t) gb.progress(3, "bar", t { interval = 100, unit = "s" .. 1, unit_size = 2 }):update(1,
    t { loss = gb.rand(1) }) end },
  { "plot", function(t) gb.plot(t { 1, 2, 3 }, t { quiet = true, title = "t" .. 1 }) end },
  { "args", function(t) gb.args(t { t { "a" .. 1, 1, "he" .. "lp", least = 0 } }, t { "--a1", "2" }) end },
  { "on_stop", function(t) gb.on_stop(print, t { grace = 1 }) gb.on_stop(nil) end },
  { "recompute", function(t) gb.recompute(function(x, u) return x * 2, u end, gb.rand(2):requires_grad_(),
    t { 1 }):sum():backward() end },
  { "Trainer", function(t)
    local net, x = model(), gb.rand(2, 4):cpu()
    local by_name, stop, average, spikes = t { "S" .. "GD", lr = 1e-3 }, t { monitor = "train_" .. "loss" },
      t { mode = "e" .. "ma" }, t { window = 3 }
    local on, metrics, limit, batch = t { step = type }, t { "ma" .. "e" }, t { train = 1 }, t { x, x }
    local trainer = gb.Trainer(t { model = net, optimizer = by_name, epochs = 1, device = "cpu", stop = stop, on = on,
      loss = nn.functional.mse_loss, metrics = metrics, limit = limit, progress = false, average = average,
      spikes = spikes })
    trainer:fit(t { batch })
    trainer:predict(t { batch })
    trainer:find_lr(t { batch }, t { steps = 3 })
    trainer:find_batch(t { batch }, t { memory = 1e9, most = 4 })
  end },
  { "Metrics", function(t) gb.Metrics(t { "ma" .. "e", other = t { "f1", average = "mi" .. "cro" } }) end },
  { "EarlyStopping", function(t) gb.EarlyStopping(t { patience = 2 }):check(t { val_loss = 1.5 }) end },
  { "Checkpoints", function(t) gb.Checkpoints("nowhere", t { keep = 2 }):due(t { step = 1, epoch = 0 }) end },
  { "no_grad", function(t) gb.no_grad(function(u) return u end, t { 1 }) end },
  { "positions", function(t)
    local set = gb.data.Subset(gb.data.TensorDataset(gb.arange(4):cpu()), t { 1, -1 })
    assert(#gb.data.ConcatDataset(t { set, set }) == 4 and #gb.data.random_split(set, t { 1, 1 }, t { seed = 1 }) == 1)
  end },
  { "samplers", function(t)
    local set = gb.data.TensorDataset(gb.arange(4):cpu())
    local weighted = gb.data.WeightedRandomSampler(t { 1, 2 }, 3)
    for _, sampler in ipairs { weighted, t { 1, 2 } } do
      for _ in gb.data.DataLoader(set, t { sampler = sampler }):iter() do end -- luacheck: ignore
    end
    for _ in gb.data.DataLoader(set, t { batch_sampler = t { t { 1, 2 } } }):iter() do end -- luacheck: ignore
    gb.data.SubsetRandomSampler(t { 1, 2 }):order(0, 1)
    gb.data.BucketBatchSampler(t { 1, 2 }, 2):order(0, 1)
  end },
  { "a vocabulary", function(t)
    local vocabulary = gb.data.Vocabulary(t { "a" .. 1 })
    vocabulary:decode(t { 1, 2 })
    vocabulary:load_state_dict(t { level = "words", lower = false, words = t { "b" .. 2 } })
  end },
  { "a preparation", function(t)
    gb.data.Preparation(t { target = "a" .. 1 }):load_state_dict(t { standardize = true, columns = t {
      t { name = "x" .. 1, mean = 1, std = 1 }, t { name = "y" .. 1, categories = t { "c" .. 1 } } } })
  end },
  { "graph", function(t)
    local ok, why = pcall(gb.cuda.graph, function(x) return x * 2 end, t { gb.rand(2) })
    if not ok and cuda then error(why, 0) end
  end },
}

describe("tables of a recipe", function()
  for _, taker in ipairs(takers) do
    it("are not asked through metamethods: " .. taker[1], function() silently(function() taker[2](trap) end) end)
    it("may be weak: " .. taker[1], function()
      silently(function() collecting(function() for _ = 1, 5 do taker[2](weak) end end) end)
    end)
  end
  it("are not asked as the dimensions of a function in Lua", function()
    local x = gb.rand(2, 3, 4)
    local calls = {
      function(d) return gb.linalg.matrix_norm(x, "fro", d { 2, -1 }) end,
      function(d) return gb.linalg.norm(x, 2, d { 1, 3 }) end,
      function(d) return gb.linalg.vector_norm(x, 2, d { 1, 3 }) end,
      function(d) return gb.gradient(x, { dim = d { 2, -1 } })[2] end,
    }
    for _, call in ipairs(calls) do
      expect(call(trap)):to_equal_bits(call(function(list) return list end))
      collecting(function() call(weak) end)
    end
  end)
  it("are not asked by an audit, whose options are plain", function()
    local x, net = gb.rand(2, 4), model()
    silently(function() amp.audit(net, function() return net(x) end, trap { precision = "16-mixed" }) end)
  end)
end)

describe("functions that a recipe takes away", function()
  -- Run fn while every function of the libraries fails.
  local function without(fn)
    local saved = {}
    for _, name in ipairs { "string", "table", "math", "utf8" } do
      local library = _G[name]
      saved[library] = {}
      for key, value in pairs(library) do
        if type(value) == "function" then saved[library][key] = value end
      end
    end
    local text = tostring
    for library, names in pairs(saved) do
      for key in pairs(names) do library[key] = function() error(key .. " was called") end end
    end
    _G.tostring, _G.type, _G.pairs, _G.next = nil, nil, nil, nil
    local ok, why = pcall(fn)
    _G.tostring, _G.type, _G.pairs, _G.next = text, type, pairs, next
    for library, names in pairs(saved) do
      for key, value in pairs(names) do library[key] = value end
    end
    if not ok then error(why, 0) end
  end
  local net, x, quiet = model(), gb.rand(2, 4), function() end
  local cases = {
    { "plan", function() amp.plan(net) end },
    { "policy", function() amp.policy({ { "0", "float32" } }):apply(net):precision("inherit") end },
    { "numerics", function() return amp.numerics(x):at_scale(2) end },
    { "progress", function() gb.progress(2, "bar", { interval = 0 }):update(1, { loss = x:mean() }) end },
    { "plot", function() gb.plot({ 1, 2, 3 }, { title = "t" }) end },
    { "args", function() gb.args({ { "lr", 1, "rate" } }, { "--lr", "2" }) end },
    { "audit", function() amp.audit(net, x) end },
    { "doctor", function() gb.doctor({ json = true }) end },
    { "..", function() return x .. "" end },
    { "Trainer", function()
      local trainer = gb.Trainer { model = net, optimizer = { "SGD", lr = 0 }, loss = nn.functional.mse_loss,
        epochs = 1, device = "cpu", metrics = { "mae", "mse" }, progress = false, time = "00:10:00", spikes = true }
      trainer:fit({ { gb.rand(2, 4), gb.rand(2, 4) } }, { { gb.rand(2, 4), gb.rand(2, 4) } })
      trainer:find_lr({ { gb.rand(2, 4), gb.rand(2, 4) } }, { steps = 3 })
    end },
    { "schedule", function() gb.optim.lr.Constant(gb.optim.SGD(model():parameters(), { lr = 1 })):step() end },
  }
  for _, case in ipairs(cases) do
    it("are not missed by " .. case[1], function()
      local old = print
      _G.print = quiet
      local ok, why = pcall(without, case[2])
      _G.print = old
      if not ok then error(why, 0) end
    end)
  end
end)

describe("objects", function()
  local x = gb.ones(2, 2):requires_grad_()
  local opt = gb.optim.SGD({ x }, { lr = 1 })
  local closed = x:register_hook(function() end)
  closed:close()
  local objects = {
    bar = gb.progress(3, "bar"), policy = amp.policy { { ".+", "float32" } }, schedule = gb.optim.lr.Constant(opt),
      optimizer = opt,
    hook = x:register_hook(function() end), closed = closed, dataset = gb.data.TensorDataset(gb.rand(8, 4):cpu()),
    expect = expect(1), precision = amp.precision("32"), numerics = amp.numerics(x:detach()), scaler = amp.GradScaler(),
    stopper = gb.EarlyStopping(), files = gb.Checkpoints("nowhere"), metrics = gb.Metrics { "mae" },
    trainer = gb.Trainer { model = model(), optimizer = "SGD" },
  }
  it("print what they are, without an address", function()
    for name, object in pairs(objects) do
      if tostring(object):find("0x", 1, true) then error(name .. " shows an address: " .. tostring(object), 0) end
    end
    expect(tostring(objects.hook)):to_be("hook")
    expect(tostring(closed)):to_be("hook (closed)")
    expect(tostring(objects.bar)):to_be("progress bar 0/3")
    expect(tostring(objects.policy)):to_be("policy (1 rules)")
  end)
  it("are not made by giving a table their metatable", function()
    for _, name in ipairs { "bar", "policy", "schedule", "optimizer", "expect", "precision", "numerics", "stopper",
      "files", "metrics", "trainer" } do
      local class = getmetatable(objects[name])
      local fake = setmetatable({}, class)
      if tostring(fake):find("0x", 1, true) then error(name .. " shows an address", 0) end
      for key, method in pairs(class) do
        if type(method) == "function" and not key:find("^__") then
          local ok, why = pcall(method, fake)
          if ok or not why:find("it is a method of", 1, true) then
            error(name .. "." .. key .. ": " .. tostring(why), 0)
          end
        end
      end
    end
  end)
  it("do not mind what is written into them", function()
    local bar = gb.progress(3, "bar")
    bar.done, bar.values, bar.names = "many", false, 7
    silently(function() bar:update(1, { loss = 1 }) end)
    expect(tostring(bar)):to_be("progress bar 1/3")
    local record = amp.numerics(x:detach())
    record.exponents, record.format, record.numel = nil, "none", nil
    expect(record:advise()):to_be(2.0 ^ 13)
    expect(tostring(record):find("4 elements", 1, true)):to_be(1)
  end)
  it("may be closed from within", function()
    local bar = gb.progress(3, "bar", { interval = 0 })
    local value = setmetatable({}, { __tostring = function() bar:close() return "closed" end })
    expect(silently(function() bar:update(1, { loss = value }) end):find("loss closed", 1, true) ~= nil):to_be(true)
    local scaler = amp.GradScaler()
    scaler:close()
    silently(function() gb.progress(3, "bar", { interval = 0 }):update(1, { scale = scaler }) end)
    local y = gb.rand(4):requires_grad_()
    local arg = y * 1
    local out = gb.recompute(function(v)
      local result = v * 2
      arg:free()
      return result
    end, arg)
    -- the argument may be gone by then; what counts is that nothing is used that was freed
    local ok = pcall(function() out:sum():backward() end)
    expect(type(ok)):to_be("boolean")
    local net, input = model(), gb.rand(2, 4)
    silently(function()
      amp.audit(net, function(m)
        local result = m(input)
        input:free()
        return result
      end)
    end)
  end)
  it("of gb.args are rows, whatever else they are", function()
    expect(function() gb.args({ { "a", 1, {} } }, {}) end):to_fail("the help is a string, got table")
    expect(function() gb.args({ { "a", 1 } }, { "--a", {} }) end):to_fail("[2] is a table")
    expect(function() gb.args({ { "a", 1 } }, { {} }) end):to_fail("[1] is a table")
    expect(function() gb.progress(3):update(1, { 5 }) end):to_fail("values by name")
    expect(function() gb.plot({ 1 }, { width = 1001, quiet = true }) end):to_fail("from 1 to 1000, got 1001")
  end)
end)

describe("coroutines that end in the middle of a call", function()
  -- How a callback ends the coroutine that its call runs in.
  local ends = {
    error = function() error("boom") end,
    yield = function() coroutine.yield() end,
    close = function(object) object:close() end,
    collect = function() collectgarbage() end,
  }
  for name, finish in pairs(ends) do
    it("leave a scaler that can be used and closed, after " .. name .. " in its scale", function()
      local net, armed, scaler = model(), false, nil
      local opt = gb.optim.SGD(net:parameters(), { lr = 0.1 })
      scaler = amp.GradScaler { scale = function()
        if armed then finish(scaler) end
        return 2
      end }
      local function train()
        opt:zero_grad()
        scaler:scale(net(gb.rand(2, 4)):sum()):backward()
        armed = armed == nil
        scaler:step(opt)
        scaler:update()
      end
      armed = nil
      local ended = coroutine.resume(coroutine.create(train))
      expect(ended):to_be(name == "collect")
      armed = false
      train()
      scaler:close()
      opt:close()
      expect(function() scaler:step(opt) end):to_fail("closed")
    end)
  end
  it("close their scopes", function()
    local held = coroutine.create(function()
      local _ <close> = gb.no_grad()
      coroutine.yield()
    end)
    coroutine.resume(held)
    expect(gb.is_grad_enabled()):to_be(true)
    expect(coroutine.close(held)):to_be(true)
    local failed = coroutine.create(function()
      local _ <close> = gb.no_grad()
      error("boom")
    end)
    expect(coroutine.resume(failed)):to_be(false)
    expect(gb.is_grad_enabled()):to_be(true)
  end)
end)

gb.test.finish()

-- test_trainer.lua - gb.Trainer and its parts: a loop written by hand gives the same bytes, what the field gets wrong
-- is right, and what was saved goes on bit for bit. (test_metrics.lua has gb.Metrics, tests/long/trainer_kill.lua
-- kills.)

local gb = require "gibbous"
gb.set_default_device("cpu")
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, F, amp, optim, data = gb.nn, gb.nn.functional, gb.amp, gb.optim, gb.data

-- A new folder for the files of a case; the case ends by removing it.
local function with_folder(fn)
  local folder = os.tmpname()
  os.remove(folder)
  local ok, why = pcall(fn, folder)
  os.execute("rm -rf " .. folder)
  if not ok then error(why, 0) end
end

local function silently(fn, ...)
  local lines, shown = {}, print
  _G.print = function(text) lines[#lines + 1] = tostring(text) end
  local results = table.pack(pcall(fn, ...))
  _G.print = shown
  if not results[1] then error(results[2], 0) end
  return table.concat(lines, "\n"), table.unpack(results, 2, results.n)
end

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

-- What two runs of the same script say, of which a callback lets the first be stopped by SIGTERM: ask() sends it, and
-- inner() trains another model. The second ends soon after it went on.
local function stopped_run(folder, files, callbacks)
  local script = folder .. "/stopped.lua"
  local file <close> = assert(io.open(script, "w"))
  file:write(([[
    local gb = require "gibbous"
    local nn, again = gb.nn, arg[1] == "again"
    gb.manual_seed(1)
    local list = {}
    for i = 1, 10 do list[i] = { gb.randn(8, 4), gb.randn(8, 1) } end
    local function trainer(options)
      options.model, options.optimizer, options.loss = nn.Linear(4, 1), { "SGD", lr = 0.1 }, nn.functional.mse_loss
      options.progress, options.device = false, "cpu"
      return gb.Trainer(options)
    end
    local function ask()
      if again then return end
      os.execute("kill -TERM $PPID")
      for i = 1, 100000 do end
    end
    local function inner() trainer({ epochs = 1 }):fit { list[1], list[2] } end
    local options = { epochs = again and 1 or 1000, resume = again, validate_every = 1, sanity = 0,
      checkpoint = { "%s/files", %s }, on = { %s } }
    options.on.load = function(t) print("loaded at step " .. t.step) end
    trainer(options):fit(list, gb.data.DataLoader(gb.data.TensorDataset(gb.randn(8, 4), gb.randn(8, 1))))
  ]]):format(folder, files, callbacks))
  file:close()
  local said = {}
  for i, word in ipairs { "", "again" } do
    local pipe <close> = assert(io.popen(("'%s' %s %s 2>&1"):format(gb.test.program(), script, word)))
    said[i] = pipe:read("a")
  end
  return said
end

-- {==== the trainer beside a loop ====

-- A char-level model: embedding, attention of a block, a head; its loss is the mean over tokens.
local Text = nn.Module:extend("Text")
function Text:init()
  self.tokens = nn.Embedding(11, 16)
  self.norm = nn.LayerNorm(16)
  self.attention = nn.MultiheadAttention(16, 2, { is_causal = true })
  self.drop = nn.Dropout(0.1)
  self.head = nn.Linear(16, 11)
end
function Text:forward(ids)
  local x = self.tokens(ids)
  x = x + self.drop(self.attention(self.norm(x)))
  return self.head(x):transpose(2, 3)
end

local Net = nn.Module:extend("Net")
function Net:init()
  self.conv = nn.Conv2d(1, 4, 3, { padding = 1, bias = false })
  self.norm = nn.BatchNorm2d(4)
  self.head = nn.Linear(4 * 4 * 4, 3)
end
function Net:forward(x) return self.head(F.max_pool2d(self.norm(self.conv(x)):relu(), 2):flatten(2)) end

local kinds = {
  text = { make = Text, data = function()
    local ids = gb.randint(0, 11, { 23, 9 })
    local targets = gb.randint(0, 11, { 23, 9 })
    for i = 1, 23 do -- sequences of different lengths
      if i % 3 > 0 then targets[{ i, { 4 + i % 3 * 2, 9 } }] = -100 end
    end
    return data.TensorDataset(ids, targets)
  end },
  cnn = { make = Net, data = function()
    return data.TensorDataset(gb.randn(23, 1, 8, 8), gb.randint(0, 3, { 23 }))
  end },
}

-- What a run begins with: the same each time.
local function world(kind, precision)
  gb.manual_seed(7)
  local set = kinds[kind].data()
  local model = kinds[kind].make():to("cpu", amp.precision(precision))
  local opt = optim.AdamW(model:parameters(), { lr = 1e-2 })
  return model, opt, data.DataLoader(set, { batch_size = 4, shuffle = true, seed = 5 })
end

-- A loop written by hand: two epochs, with micro-batches, clipping, a schedule and an average.
local function by_hand(kind, name, accumulate)
  local model, opt, loader = world(kind, name)
  local precision = amp.precision(name)
  local scaler = amp.GradScaler(precision)
  local schedule = optim.lr.Cosine(opt, { steps = 8, warmup = 2 })
  local average = optim.EMA(model, { decay = 0.9, use_buffers = true })
  local losses = {}
  local function step(group)
    local total = 0
    for _, b in ipairs(group) do total = total + b[2]:ne(-100):sum():item() end
    opt:zero_grad()
    local mean
    for _, b in ipairs(group) do
      local loss = amp.autocast(precision, function() return F.cross_entropy(model(b[1]), b[2]) end)
      local equal = true
      for _, other in ipairs(group) do
        equal = equal and other[2]:ne(-100):sum():item() == group[1][2]:ne(-100):sum():item()
      end
      if #group > 1 then
        loss = equal and loss / #group or loss * (b[2]:ne(-100):sum():item() / total)
      end
      scaler:scale(loss):backward()
      mean = mean and mean + loss:detach() or loss:detach()
    end
    scaler:unscale_(opt)
    nn.utils.clip_grad_norm_(model:parameters(), 0.5)
    scaler:step(opt)
    scaler:update()
    local stats = scaler:is_enabled() and scaler:stats() or {}
    if not stats.last_skipped then
      schedule:step()
      average:update_parameters()
    end
    losses[#losses + 1] = mean:item()
  end
  for _ = 1, 2 do
    local group = {}
    for x, y in loader:iter() do
      group[#group + 1] = { x, y }
      if #group == accumulate then
        step(group)
        group = {}
      end
    end
    if #group > 0 then step(group) end
  end
  return { model = model, opt = opt, average = average, losses = losses, skipped = scaler:is_enabled() and
    scaler:stats().skipped or 0, rng = gb.get_rng_state().offset }
end

local function by_trainer(kind, name, accumulate, more)
  local model, opt, loader = world(kind, name)
  local losses, average = {}, optim.EMA(model, { decay = 0.9, use_buffers = true })
  local options = { model = model, optimizer = opt, loss = F.cross_entropy, precision = name, device = "cpu",
    accumulate = accumulate, epochs = 2, clip = 0.5, schedule = { "Cosine", steps = 8, warmup = 2 }, progress = false,
    average = average, on = { step = function(_, values) losses[#losses + 1] = values.loss end } }
  local before, state
  options.on.stop = function()
    before, state = {}, opt:state_dict() -- then the average becomes the weights
    for i, p in ipairs(model:parameters()) do before[i] = p:detach():clone() end
  end
  for key, value in pairs(more or {}) do options[key] = value end
  local trainer = gb.Trainer(options)
  silently(function() trainer:fit(loader) end)
  return { weights = before, state = state, model = model, opt = opt, average = average, losses = losses,
    skipped = trainer.skipped,
    rng = gb.get_rng_state().offset, trainer = trainer }
end

local function same_tensors(a, b)
  expect(#a):to_be(#b)
  for i = 1, #a do expect(a[i]:detach()):to_equal_bits(b[i]:detach()) end
end

local function same_states(a, b)
  for i, entry in ipairs(a.state) do
    for key, value in pairs(entry) do
      if gb.is_tensor(value) then expect(value):to_equal_bits(b.state[i][key]) else expect(value)
        :to_be(b.state[i][key]) end
    end
  end
  for g, group in ipairs(a.groups) do expect(group.lr):to_be(b.groups[g].lr) end
end

describe("a Trainer gives the bytes of a loop written by hand:", function()
  for _, kind in ipairs { "text", "cnn" } do
    for _, precision in ipairs { "32-true", "16-mixed", "bf16-mixed", "bf16-true" } do
      for _, accumulate in ipairs { 1, 2, 4 } do
        it(("%s, %s, %d micro-batches"):format(kind, precision, accumulate), function()
          local a, b = by_hand(kind, precision, accumulate), by_trainer(kind, precision, accumulate)
          expect(#b.losses):to_be(2 * math.ceil(6 / accumulate))
          for i = 1, #a.losses do expect(b.losses[i]):to_be(a.losses[i]) end
          same_tensors(b.weights, a.model:parameters())
          same_states(a.opt:state_dict(), b.state)
          local wanted = a.average:state_dict().averages
          for name, value in pairs(b.average:state_dict().averages) do expect(value):to_equal_bits(wanted[name]) end
          expect(b.skipped):to_be(a.skipped)
          expect(b.rng):to_be(a.rng)
        end)
      end
    end
  end
  it("without clipping, schedule and average too", function()
    local model, opt, loader = world("cnn", "32-true")
    for _ = 1, 2 do
      for x, y in loader:iter() do
        opt:zero_grad()
        F.cross_entropy(model(x), y):backward()
        opt:step()
      end
    end
    local other, other_opt, other_loader = world("cnn", "32-true")
    gb.Trainer({ model = other, optimizer = other_opt, loss = F.cross_entropy, epochs = 2, progress = false,
      device = "cpu" }):fit(other_loader)
    same_tensors(other:parameters(), model:parameters())
  end)
  it("and validation in between changes nothing", function()
    local plain = by_trainer("cnn", "bf16-mixed", 2)
    local _, _, loader = world("cnn", "bf16-mixed")
    local model, opt, train = world("cnn", "bf16-mixed")
    local before
    local trainer = gb.Trainer { model = model, optimizer = opt, loss = F.cross_entropy, precision = "bf16-mixed",
      accumulate = 2, epochs = 2, clip = 0.5, schedule = { "Cosine", steps = 8, warmup = 2 }, progress = false,
      device = "cpu", average = optim.EMA(model, { decay = 0.9, use_buffers = true }), validate_every = 1,
      metrics = { "accuracy", "f1" }, on = { stop = function()
        before = {}
        for i, p in ipairs(model:parameters()) do before[i] = p:detach():clone() end
      end } }
    silently(function() trainer:fit(train, loader) end)
    same_tensors(before, plain.weights)
    expect(trainer.values.val_loss):to_be_truthy()
  end)
end)

-- ====}

-- {==== accumulation ====

-- A linear model whose gradient is known.
local function linear_world(options)
  gb.manual_seed(3)
  local model = nn.Linear(3, 2, { bias = false })
  options.model, options.progress, options.device = model, false, "cpu"
  options.optimizer = options.optimizer or optim.SGD(model:parameters(), { lr = 1.0 })
  options.loss = options.loss or F.mse_loss
  return model, gb.Trainer(options)
end

describe("accumulation", function()
  local function batches(sizes, targets)
    local list = {}
    gb.manual_seed(4)
    local x = gb.randn(64, 3)
    local at = 1
    for i, n in ipairs(sizes) do
      list[i] = { x:narrow(1, at, n), targets and targets[i] or gb.zeros(n, 2) }
      at = at + n
    end
    return list, x
  end
  it("of four equal batches is the batch of all, to the last bits of a sum", function()
    local list, x = batches { 4, 4, 4, 4 }
    local a, many = linear_world { epochs = 1, accumulate = 4 }
    many:fit(list)
    local b, one = linear_world { epochs = 1 }
    one:fit { { x:narrow(1, 1, 16), gb.zeros(16, 2) } }
    expect(a.weight:detach()):to_be_close(b.weight:detach(), 1e-6)
    expect(many.values.loss):to_be_near(one.values.loss, 1e-6)
    expect(many.step):to_be(1)
  end)
  it("takes the mean over all elements of the step, also where batches differ in size", function()
    local list, x = batches { 1, 7, 3 }
    local a, many = linear_world { epochs = 1, accumulate = 3 }
    many:fit(list)
    local b, one = linear_world { epochs = 1 }
    one:fit { { x:narrow(1, 1, 11), gb.zeros(11, 2) } }
    expect(a.weight:detach()):to_be_close(b.weight:detach(), 1e-6)
  end)
  it("takes the mean over the kept tokens of the step", function()
    local targets = { gb.tensor { 0, -100, -100, -100 }, gb.tensor { 1, 1, 0, -100 }, gb.tensor { -100, -100, 1, 0 } }
    local list, x = batches({ 4, 4, 4 }, targets)
    local a, many = linear_world { epochs = 1, accumulate = 3, loss = F.cross_entropy }
    many:fit(list)
    local b, one = linear_world { epochs = 1, loss = F.cross_entropy }
    one:fit { { x:narrow(1, 1, 12), gb.cat(targets) } }
    expect(a.weight:detach()):to_be_close(b.weight:detach(), 1e-6)
    expect(many.values.train_loss):to_be_near(one.values.train_loss, 1e-6)
    local c, wrong = linear_world { epochs = 1, accumulate = 3, loss = F.cross_entropy, count = function()
      return 1 end }
    wrong:fit(list)
    expect(gb.allclose(c.weight:detach(), b.weight:detach())):to_be(false)
  end)
  it("leaves out a batch of which nothing counts, and skips a step of such batches, which ends no run", function()
    local kept, none = gb.tensor { 1, 0, -100, 1 }, gb.full({ 4 }, -100):long()
    local list, x = batches({ 4, 4, 4, 4, 4, 4 }, { kept, none, none, none, none, kept })
    for _, shards in ipairs { false, 2 } do
      for _, precision in ipairs { "32-true", "16-mixed" } do
        local seen, skips = {}, {}
        local function options(more)
          more.optimizer, more.epochs, more.loss = { "AdamW", lr = 0.1 }, 1, F.cross_entropy
          more.precision, more.shards, more.nonfinite, more.metrics = precision, shards, "stop", { "accuracy" }
          more.schedule, more.average = { "Step", step_size = 1, gamma = 0.5 }, "ema"
          return more
        end
        local a, many = linear_world(options { accumulate = 2, train_metrics = true, on = {
          step = function(_, v) seen[#seen + 1] = v.loss end,
          skip = function(_, v) skips[#skips + 1] = v.report end } })
        local text = silently(function() many:fit(list) end)
        local b, one = linear_world(options {})
        one:fit { { x:narrow(1, 1, 4), kept }, { x:narrow(1, 21, 4), kept } }
        expect(a.weight:detach()):to_equal_bits(b.weight:detach())
        expect(many.step):to_be(3)
        expect(many.skipped):to_be(1)
        expect(many.schedule.last_epoch):to_be(2)
        expect(many.average.n_averaged):to_be(2)
        expect(seen[2] ~= seen[2]):to_be(true)
        expect(many.values.train_loss):to_be(one.values.train_loss)
        expect(#skips):to_be(1)
        local said = "step 2, epoch 1, batches 3 to 4: nothing in it counts for the loss"
        expect(skips[1]:find(said, 1, true)):to_be(1)
        expect(text:find(said, 1, true) ~= nil):to_be(true)
      end
    end
    local c, counted = linear_world { epochs = 1, count = function(_, y) return y:ne(0):sum() end }
    local before = c.weight:detach():clone()
    silently(function() -- the second has a tensor for its count, which is 0
      counted:fit { { x:narrow(1, 1, 4), gb.ones(4, 2) }, { x:narrow(1, 1, 4), gb.zeros(4, 2) } }
    end)
    expect(counted.skipped):to_be(1)
    expect(gb.equal(c.weight:detach(), before)):to_be(false)
    local _, rows = linear_world { epochs = 1 }
    silently(function() rows:fit { { gb.zeros(0, 3), gb.zeros(0, 2) } } end)
    expect(rows.skipped):to_be(1)
  end)
  it("steps with the last, short group of an epoch, and its loss is the mean of what there is", function()
    local list, x = batches { 2, 2, 2, 2, 2 }
    local rates = {}
    local a, many = linear_world { epochs = 1, accumulate = 3, on = { step = function(_,
      v) rates[#rates + 1] = v.loss end } }
    many:fit(list)
    expect(many.step):to_be(2)
    local b, one = linear_world { epochs = 1 }
    one:fit { { x:narrow(1, 1, 6), gb.zeros(6, 2) }, { x:narrow(1, 7, 4), gb.zeros(4, 2) } }
    expect(a.weight:detach()):to_be_close(b.weight:detach(), 1e-6)
    expect(#rates):to_be(2)
  end)
end)

-- ====}

-- {==== steps that are skipped ====

-- A model that gives NaN for the batches that are asked for, which are marked.
local function with_bad_steps(options)
  gb.manual_seed(3)
  local model = nn.Linear(3, 2)
  options.model, options.progress, options.device = model, false, "cpu"
  options.optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
  options.compute = function(m, x, y)
    local loss = F.cross_entropy(m(x), y)
    if x[{ 1, 1 }]:item() > 99 then loss = (loss - 1e9):sqrt() end
    return loss
  end
  return model, options
end

describe("a step that is not finite", function()
  local function list(n, bad)
    gb.manual_seed(9)
    local batches = {}
    for i = 1, n do
      batches[i] = { gb.randn(4, 3), gb.randint(0, 2, { 4 }) }
      if bad and bad[i] then batches[i][1][{ 1, 1 }] = 100 end
    end
    return batches
  end
  it("is skipped, and advances neither schedule nor average, in every precision", function()
    for _, precision in ipairs { "32-true", "bf16-mixed", "16-mixed" } do
      local rates, skips = {}, {}
      local model, options = with_bad_steps({ precision = precision, epochs = 1,
        schedule = { "Step", step_size = 1, gamma = 0.5 }, average = "ema", clip = 1.0,
        on = { step = function(_, v) rates[#rates + 1] = v.lr end,
          skip = function(_, v) skips[#skips + 1] = v.report end } })
      local weights = {}
      options.on.backward = function() weights[#weights + 1] = model.weight:detach():clone() end
      local trainer = gb.Trainer(options)
      local text = silently(function() trainer:fit(list(5, { [2] = true, [3] = true })) end)
      expect(#skips):to_be(2)
      expect(trainer.step):to_be(5)
      expect(trainer.skipped):to_be(2)
      expect(trainer.schedule.last_epoch):to_be(3)
      expect(trainer.average.n_averaged):to_be(3)
      expect(rates[2]):to_be_near(0.05)
      expect(rates[4]):to_be_near(0.05)
      expect(rates[5]):to_be_near(0.025)
      expect(weights[3]):to_equal_bits(weights[2])
      expect(weights[4]):to_equal_bits(weights[2])
      expect(text:find("step 2, epoch 1, batch 2: the loss is nan", 1, true) ~= nil or
        text:find("step 2, epoch 1, batch 2: the loss is -nan", 1, true) ~= nil):to_be(true)
    end
  end)
  it("is told with the batches, the parameter, the op and the line", function()
    local reports = {}
    local _, options = with_bad_steps({ epochs = 1, accumulate = 2,
      on = { skip = function(_, v) reports[#reports + 1] = v.report end } })
    local trainer = gb.Trainer(options)
    silently(function() trainer:fit(list(4, { [3] = true })) end)
    local report = reports[1]
    for _, part in ipairs { "step 2, epoch 1, batches 3 to 4", "weight", "the step was skipped" } do
      if not report or not report:find(part, 1, true) then error("no '" .. part .. "' in: " .. report, 0) end
    end
  end)
  it("is found by an audit where the model makes it, which leaves no trace", function()
    local Bad = nn.Module:extend("Bad")
    function Bad:init() self.inner, self.drop, self.norm = nn.Linear(3, 2), nn.Dropout(0.5), nn.BatchNorm1d(2) end
    function Bad:forward(x)
      local y = self.drop(self.norm(self.inner(x)))
      return (x:max():item() > 99) and (y - 1e9):sqrt() or y
    end
    local function run(reports)
      gb.manual_seed(1)
      local model = Bad()
      local batches = list(3, { [2] = true })
      local trainer = gb.Trainer { model = model, optimizer = "SGD", loss = F.cross_entropy, epochs = 1, device = "cpu",
        progress = false, on = { skip = function(_, v) reports[#reports + 1] = v.report end } }
      silently(function() trainer:fit(batches) end)
      return model, gb.get_rng_state().offset
    end
    local reports, ignored = {}, {}
    local a, offset = run(reports)
    local found = "sqrt in Bad %(.*test_trainer.lua:%d+%) made the first value that is not finite"
    expect(reports[1]:find(found) ~= nil):to_be(true)
    local old = amp.audit
    amp.audit = function() error("not now") end
    local b, other = run(ignored)
    amp.audit = old
    same_tensors(a:parameters(), b:parameters())
    expect(a.norm.num_batches_tracked:item()):to_be(b.norm.num_batches_tracked:item())
    expect(offset):to_be(other)
  end)
  it("ends the run where nonfinite is stop", function()
    local _, options = with_bad_steps({ epochs = 1, nonfinite = "stop" })
    local trainer = gb.Trainer(options)
    expect(function() silently(function() trainer:fit(list(3, { [2] = true })) end) end)
      :to_fail("step 2, epoch 1, batch 2: the loss is")
  end)
  it("that is a spike is told with the batches and the largest gradient", function()
    local batches = list(6)
    batches[4][1] = batches[4][1] * 200
    local model = nn.Linear(3, 2)
    local trainer = gb.Trainer { model = model, optimizer = { "SGD", lr = 1e-3 }, loss = F.cross_entropy, epochs = 1,
      progress = false, device = "cpu", spikes = { tolerance = 3 } }
    local text = silently(function() trainer:fit(batches) end)
    expect(text:find("step 4, epoch 1, batch 4: the loss is", 1, true) ~= nil):to_be(true)
    expect(text:find("the largest gradient is that of weight", 1, true) ~= nil):to_be(true)
    expect(#trainer.spikes_found):to_be(1)
    expect(trainer.spikes_found[1].first):to_be(3)
    expect(trainer.spikes_found[1].last):to_be(4)
  end)
end)

-- ====}

-- {==== EarlyStopping ====

local inf, nan = math.huge, 0 / 0

-- { options, values, the check that stops (0: none), what the reason says }.
local sequences = {
  { { patience = 3 }, { 3, 2, 1, 0.5, 0.4 }, 0 },
  { { patience = 3 }, { 1, 1, 1, 1 }, 4, "not better than 1 in 3 checks" },
  { { patience = 1 }, { 1, 2 }, 2, "in 1 checks" },
  { { patience = 2 }, { 1, 2, 0.5, 2, 2 }, 5, "not better than 0.5" },
  { { patience = 2, min_delta = 0.5 }, { 2, 1.6, 1.5 }, 3, "not better than 2" },
  { { patience = 2, min_delta = 0.5 }, { 2, 1.4, 1, 0.95 }, 4, "not better than 1.4" },
  { { patience = 2, mode = "max" }, { 0.1, 0.2, 0.2, 0.1 }, 4, "not better than 0.2" },
  { { patience = 2, mode = "max", min_delta = 0.1 }, { 0.5, 0.55, 0.62, 0.65, 0.7 }, 5, "not better than 0.62" },
  { { patience = 9 }, { 1, nan }, 2, "not finite" },
  { { patience = 2, check_finite = false }, { 1, nan, inf }, 3, "in 2 checks" },
  { { patience = 9, stopping_threshold = 0.1 }, { 1, 0.1, 0.09 }, 3, "better than the threshold 0.1" },
  { { patience = 9, mode = "max", divergence_threshold = 0.2 }, { 0.5, 0.2, 0.1 }, 3, "worse than the threshold 0.2" },
}

describe("EarlyStopping", function()
  for i, row in ipairs(sequences) do
    it("follows sequence " .. i, function()
      local stopper, stopped = gb.EarlyStopping(row[1]), 0
      for k, value in ipairs(row[2]) do
        local is_over, why = stopper:check({ val_loss = value })
        if is_over then
          stopped = k
          expect(why:find(row[4], 1, true) ~= nil):to_be(true)
          expect(stopper.reason):to_be(why)
          break
        end
        local other = gb.EarlyStopping(row[1]) -- and goes on from its state
        other:load_state_dict(stopper:state_dict())
        stopper = other
      end
      expect(stopped):to_be(row[3])
    end)
  end
  it("wants the value that it watches, unless it may be missing", function()
    expect(function() gb.EarlyStopping({ monitor = "val_los" }):check({ val_loss = 1 }) end)
      :to_fail("there is no value 'val_los'; did you mean 'val_loss'?")
    expect((gb.EarlyStopping({ monitor = "x", strict = false }):check({ val_loss = 1 }))):to_be(false)
    expect(function() gb.EarlyStopping({ min_delta = -1 }) end):to_fail("'min_delta' must be a number from 0")
    expect(function() gb.EarlyStopping():load_state_dict({}) end):to_fail("takes what state_dict gave")
  end)
  it("ends a Trainer, and a run that it ended stays ended when it is resumed", function()
    with_folder(function(folder)
      local function make()
        local _, trainer = linear_world { optimizer = { "SGD", lr = 0 }, epochs = 10, resume = true,
          stop = { monitor = "train_loss", patience = 2 }, checkpoint = folder }
        return trainer
      end
      local list = { { gb.ones(4, 3), gb.zeros(4, 2) } }
      local values = make():fit(list)
      expect(values.epoch):to_be(3)
      expect(values.reason:find("train_loss was not better than", 1, true)):to_be(1)
      local again = make()
      again:fit(list)
      expect(again.epoch):to_be(3)
    end)
  end)
end)

-- ====}

-- {==== Checkpoints ====

describe("Checkpoints", function()
  local model = nn.Linear(2, 2)
  local parts = { model = model }

  it("keep the k best, of equal ones the older", function()
    with_folder(function(folder)
      local files = gb.Checkpoints(folder, { monitor = "loss", keep = 2 })
      local saved = {}
      for step, loss in ipairs { 3, 2, 2, 2, 1, 1, 5 } do
        saved[step] = files:save(parts, { epoch = 1, step = step, loss = loss }) ~= nil
      end
      expect(table.concat({ tostring(saved[1]), tostring(saved[2]), tostring(saved[3]), tostring(saved[4]),
        tostring(saved[5]), tostring(saved[6]), tostring(saved[7]) }, " ")):to_be(
        "true true true false true true false")
      local names = {}
      for i, path in ipairs(files.kept) do names[i] = path:match("step=(%d+)") end
      expect(table.concat(names, " ")):to_be("5 6")
      expect(files.best):to_be(folder .. "/epoch=1-step=5.safetensors")
      expect(files.best_score):to_be(1)
      for step = 1, 7 do
        expect(exists(("%s/epoch=1-step=%d.safetensors"):format(folder, step))):to_be(step == 5 or step == 6)
      end
      expect(exists(files.last)):to_be(true)
    end)
  end)
  it("keep the most recent where nothing is monitored, and each major one", function()
    with_folder(function(folder)
      local files = gb.Checkpoints(folder, { keep = 2, major = 3, name = "{step}" })
      for step = 1, 8 do files:save(parts, { step = step }) end
      for step = 1, 8 do
        local kept = step == 1 or step == 4 or step == 7 or step == 6 or step == 8
        expect(exists(("%s/step=%d.safetensors"):format(folder, step))):to_be(kept)
      end
    end)
  end)
  it("take NaN for the worst, put measures into names, and never write over another run's file", function()
    with_folder(function(folder)
      local function files() return gb.Checkpoints(folder, { monitor = "val_loss", keep = 1,
        name = "{epoch}-{val_loss:.2f}" }) end
      local a = files()
      a:save(parts, { epoch = 1, val_loss = nan })
      expect(a:save(parts, { epoch = 2, val_loss = 0.125 })):to_be(folder .. "/epoch=2-val_loss=0.12.safetensors")
      expect(#a.kept):to_be(1)
      expect(files():save(parts, { epoch = 2, val_loss = 0.125 })):to_be(folder ..
        "/epoch=2-val_loss=0.12-v1.safetensors")
      expect(function() gb.Checkpoints(folder, { name = "{acc}" }):save(parts, {}) end):to_fail("a field acc")
      for name, value in pairs { ["{epoch:9999d}"] = 1, ["{epoch:d}"] = 1.5, ["{epoch:.999f}"] = 1 } do
        expect(function() gb.Checkpoints(folder, { name = name }):save(parts, { epoch = value }) end)
          :to_fail(("Checkpoints: the name '%s' has a field %s that cannot hold %s"):format(name, name, value))
      end
    end)
  end)
  it("read what is in the tables that they are given, and leave these as they were", function()
    local function odd(t)
      return setmetatable(t, { __index = function(_, key) error("asked for " .. key) end,
        __newindex = function(_, key) error("set " .. key) end })
    end
    with_folder(function(folder)
      local files = gb.Checkpoints(folder, { monitor = "loss", every_steps = 2 })
      local mine = odd { model = parts.model }
      expect(files:save(mine, odd {})):to_be(nil)
      files:save_last(mine)
      files:load(mine)
      expect(rawget(mine, "checkpoints")):to_be(nil)
      expect(files:due(odd {})):to_be(false)
      expect(function() gb.Checkpoints(folder, { name = "{epoch}" }):save(parts, odd {}) end)
        :to_fail("not among the values")
    end)
    expect(function() gb.EarlyStopping():check(odd {}) end):to_fail("there is no value 'val_loss'")
    expect(function() gb.EarlyStopping():load_state_dict(odd {}) end):to_fail("takes what state_dict gave")
  end)
  it("that were stopped between the save and the removal go on with the same files", function()
    with_folder(function(folder)
      local files = gb.Checkpoints(folder, { monitor = "loss", keep = 1 })
      files:save(parts, { epoch = 1, step = 1, loss = 2 })
      local path = folder .. "/epoch=1-step=1.safetensors"
      os.execute(("cp %s %s.kept"):format(path, path))
      files:save(parts, { epoch = 1, step = 2, loss = 1 })
      os.rename(path .. ".kept", path) -- as if the process had died before it was removed
      local later = gb.Checkpoints(folder, { monitor = "loss", keep = 1 })
      later:load(parts)
      expect(exists(path)):to_be(false)
      expect(later.best):to_be(folder .. "/epoch=1-step=2.safetensors")
      expect(later:save(parts, { epoch = 1, step = 2, loss = 0.5 })):to_be(folder .. "/epoch=1-step=2-v1.safetensors")
    end)
  end)
  it("remove nothing where the save fails, and no file of another folder", function()
    with_folder(function(folder)
      local files = gb.Checkpoints(folder, { keep = 1 })
      local first = files:save(parts, { epoch = 1, step = 1 })
      expect(function() files:save({ model = model, extra = { x = print } }, { epoch = 1, step = 2 }) end)
        :to_fail("is a function")
      expect(exists(first)):to_be(true)
      expect(#files.kept):to_be(1)
      for _, name in ipairs { "../x.safetensors", "/etc/passwd", "a/b.safetensors", ".safetensors",
        "last.safetensors" } do
        expect(function() files:load_state_dict({ kept = {}, removed = { name }, saves = 0 }) end)
          :to_fail("is no file of ours")
        expect(function() files:load_state_dict({ kept = { { name = name } }, removed = {}, saves = 0 }) end)
          :to_fail("is not one that these checkpoints keep")
      end
    end)
  end)
  it("can hold only weights, and hold the average as the weights", function()
    with_folder(function(folder)
      local files = gb.Checkpoints(folder, { weights_only = true })
      expect(gb.load(files:save(parts, { epoch = 1, step = 1 })).weight):to_equal_bits(model.weight:detach())
      local net, trainer = linear_world { epochs = 2, average = { mode = "ema", decay = 0.5 },
        checkpoint = { folder .. "/b", every_steps = 1 }, on = { stop = function() end } }
      trainer:fit { { gb.ones(4, 3), gb.zeros(4, 2) }, { gb.ones(4, 3), gb.ones(4, 2) } }
      local other = nn.Linear(3, 2, { bias = false })
      gb.io.load_checkpoint(folder .. "/b/last.safetensors", { model = other })
      expect(other.weight:detach()):to_equal_bits(trainer.average:state_dict().averages.weight)
      expect(net.weight:detach()):to_equal_bits(other.weight:detach()) -- at the end the average is the weights
      gb.io.load_checkpoint(folder .. "/b/last.safetensors", { live = other })
      expect(gb.allclose(other.weight:detach(), net.weight:detach())):to_be(false)
    end)
  end)
  it("say what is wrong", function()
    expect(function() gb.Checkpoints("x", { every_steps = 1, every_epochs = 1 }) end):to_fail("give one of every_steps")
    expect(function() gb.Checkpoints("x", { keep = -2 }) end):to_fail("'keep' must be from 0")
    expect(function() gb.Checkpoints("x", { major = 2, monitor = "loss" }) end):to_fail("without a monitor")
    expect(function() gb.Checkpoints("x", { keep = 1 }):load({ model = model }, "best") end):to_fail("no best file")
    for name, why in pairs { ["last"] = "is that of the state to go on from", ["best/{step}"] = "has a /",
      [""] = "begins with no letter", [".{step}"] = "begins with no letter", ["{step:s}"] = "has a brace that is no \z
      field", ["a{"] = "has a brace", [("x"):rep(101)] = "has more than 100 letters" } do
      expect(function() gb.Checkpoints("x", { name = name }) end):to_fail(why)
    end
  end)
end)

-- ====}

-- {==== going on ====

-- A run with all that has state: dropout, a shuffled loader, accumulation, a scaler that skips, schedule, average,
-- metrics, early stopping, callbacks.
local function full_run(folder, more)
  local model, opt, loader = world("cnn", "16-mixed")
  local _, _, validation = world("cnn", "16-mixed")
  model.drop = nn.Dropout(0.3)
  local counted = { n = 0 }
  local options = { model = model, optimizer = opt, precision = "16-mixed", device = "cpu", progress = false,
    epochs = 3,
    compute = function(m, x, y)
      local logits = m.drop(m(x))
      return F.cross_entropy(logits, y, { label_smoothing = 0.1 }), logits, y
    end,
    scaler = amp.GradScaler({ init_scale = 2.0 ^ 24, growth_interval = 3 }), accumulate = 2, clip = 1.0,
    schedule = { "Cosine", warmup = 2 }, average = { mode = "ema", decay = 0.9 }, metrics = { "accuracy", "f1" },
      train_metrics = true, stop = { patience = 50 }, spikes = true, resume = true,
    checkpoint = { folder, every_steps = 1, keep = -1, name = "{step}" },
    on = { { step = function() counted.n = counted.n + 1 end, state = function() return { n = counted.n } end,
      restore = function(state) counted.n = state.n end } } }
  for key, value in pairs(more or {}) do options[key] = value end
  local trainer = gb.Trainer(options)
  local _, values = silently(function() return trainer:fit(loader, validation) end)
  return { model = model, opt = opt, trainer = trainer, values = values, counted = counted.n }
end

local function same_run(a, b)
  same_tensors(a.model:parameters(), b.model:parameters())
  for name, value in pairs(a.model:state_dict()) do expect(value):to_equal_bits(b.model:state_dict()[name]) end
  same_states(a.opt:state_dict(), b.opt:state_dict())
  for name, value in pairs(a.values) do
    if name ~= "samples_per_second" and name ~= "data_wait" then expect(b.values[name]):to_be(value) end
  end
  expect(b.counted):to_be(a.counted)
  expect(b.trainer.skipped):to_be(a.trainer.skipped)
end

describe("a run that goes on", function()
  it("from any step, in the middle of an epoch too, gives the same bytes", function()
    with_folder(function(folder)
      local whole = full_run(folder .. "/whole")
      expect(whole.trainer.step):to_be(9)
      expect(whole.trainer.skipped > 0):to_be(true)
      for step = 1, 9 do
        local path = ("%s/at%d"):format(folder, step)
        os.execute(("mkdir -p %s && cp %s/whole/step=%d.safetensors %s/last.safetensors"):format(path, folder, step,
          path))
        same_run(whole, full_run(path))
      end
      local file = assert(io.popen(("cmp %s/whole/last.safetensors %s/at4/last.safetensors"):format(folder, folder)))
      expect(file:read("a")):to_be("")
      file:close()
    end)
  end)
  it("from a path, and tells of what is not there", function()
    with_folder(function(folder)
      local whole = full_run(folder .. "/whole")
      same_run(whole, full_run(folder .. "/other", { resume = folder .. "/whole/step=5.safetensors" }))
      expect(function() full_run(folder .. "/none", { resume = folder .. "/nothing.safetensors" }) end)
        :to_fail("nothing")
      expect(function() linear_world { resume = true, epochs = 1 }:fit {} end):to_fail("")
    end)
  end)
  -- It used to begin anew, without a word.
  it("not from nothing where the last file is gone and others of a run are there", function()
    with_folder(function(folder)
      local whole = full_run(folder .. "/whole")
      os.remove(folder .. "/whole/last.safetensors")
      for _, text in ipairs {
        "resume = true goes on from " .. folder .. "/whole/last.safetensors, which is not there",
        "step=9.safetensors (step 9), step=8.safetensors (step 8)", "4 more",
        'resume = "' .. folder .. '/whole/step=9.safetensors"',
      } do
        expect(function() full_run(folder .. "/whole") end):to_fail(text)
      end
      same_run(whole, full_run(folder .. "/whole", { resume = folder .. "/whole/step=9.safetensors" }))
    end)
  end)
  it("from the newest whole file that there is, by its steps", function()
    with_folder(function(folder)
      full_run(folder .. "/whole")
      os.execute(([[cd %s/whole && mkdir ../some && cp step=4.safetensors ../some/z.safetensors &&
        cp step=7.safetensors ../some/a.safetensors && head -c 2000 step=9.safetensors >../some/step=9.safetensors]])
        :format(folder))
      expect(function() full_run(folder .. "/some") end):to_fail('resume = "' .. folder .. '/some/a.safetensors"')
    end)
  end)
  it("not from nothing where all that is there is cut", function()
    with_folder(function(folder)
      full_run(folder .. "/whole")
      os.execute(([[cd %s/whole && mkdir ../cut && head -c 100 step=9.safetensors >../cut/step=9.safetensors]])
        :format(folder))
      for _, text in ipairs { "step=9.safetensors (it cannot be read)", "Bring one of them back" } do
        expect(function() full_run(folder .. "/cut") end):to_fail(text)
      end
    end)
  end)
  it("anew where the folder has no file of a run", function()
    with_folder(function(folder)
      local whole = full_run(folder .. "/whole")
      os.execute("mkdir " .. folder .. "/weights")
      gb.save(folder .. "/weights/model.safetensors", whole.model:state_dict())
      gb.io.save_checkpoint(folder .. "/weights/own.safetensors", { model = whole.model })
      same_run(whole, full_run(folder .. "/weights"))
    end)
  end)
  it("from what is kept where it was killed before the first last file", function()
    with_folder(function(folder)
      local whole = full_run(folder .. "/whole")
      os.execute(("mkdir %s/killed && cp %s/whole/step=1.safetensors %s/killed"):format(folder, folder, folder))
      same_run(whole, full_run(folder .. "/killed"))
      local pipe = assert(io.popen(("diff -rq %s/whole %s/killed"):format(folder, folder)))
      expect(pipe:read("a")):to_be("")
      pipe:close()
    end)
  end)
  it("after an error at any step, if it saves then", function()
    with_folder(function(folder)
      local whole = full_run(folder .. "/whole")
      -- where: in the forward pass, in a callback after the step, or in the validation
      local function failing(where, step, path)
        local done, is_over = 0, false
        local function fail_at(place)
          if place == where and done == step and not is_over then
            is_over = true
            error("as planned", 0)
          end
        end
        local function options(more)
          more.checkpoint, more.save_on_error = { path, every_steps = 1000 }, true
          return more
        end
        local counted = { n = 0 }
        local on = { { step = function() counted.n = counted.n + 1 end, state = function() return { n = counted.n } end,
          restore = function(state) counted.n = state.n end },
          { step = function()
            done = done + 1
            fail_at("step")
          end } }
        local ok, why = pcall(full_run, path, options { on = on, compute = function(m, x, y)
          local logits = m.drop(m(x))
          fail_at(m.training and "forward" or "validation")
          return F.cross_entropy(logits, y, { label_smoothing = 0.1 }), logits, y
        end })
        expect(ok):to_be(false)
        expect(why):to_be("as planned")
        local again = full_run(path, options {})
        again.counted = whole.counted -- another callback counted
        same_run(whole, again)
      end
      for step = 0, 8 do failing("forward", step, folder .. "/forward" .. step) end
      for _, step in ipairs { 1, 5, 8 } do failing("step", step, folder .. "/step" .. step) end
      for _, step in ipairs { 3, 6 } do failing("validation", step, folder .. "/validation" .. step) end
    end)
  end)
  it("on other data or options says what does not fit", function()
    with_folder(function(folder)
      local function run(n, more)
        local options = { optimizer = { "SGD", lr = 0.1 }, epochs = 2, resume = true, sanity = 0,
          checkpoint = { folder, every_steps = 3 }, metrics = { a = { "auc" } }, train_metrics = true,
          loss = function(y, t) return F.cross_entropy(y, t) end,
          on = { step = function(t) if t.step == 3 then return false end end } }
        for name, value in pairs(more) do options[name] = value end
        local list = {}
        for i = 1, n do list[i] = { gb.randn(4, 3), gb.tensor { 0, 1, 1, 0 } } end
        local _, trainer = linear_world(options)
        return trainer:fit(list)
      end
      expect(run(6, {}).step):to_be(3)
      expect(function() run(3, {}) end):to_fail("the run stands after batch 3 of epoch 1, and an epoch has 3 batches \z
        now; go on with the data")
      expect(function() run(6, { limit = { train = 2 } }) end):to_fail("an epoch has 2 batches now")
      expect(function() run(6, { checkpoint = { folder, monitor = "train_loss" } }) end)
        :to_fail("was kept without a measure, and now 'train_loss' is monitored; give another folder")
      expect(function() run(6, { metrics = { a = { "auc", bins = 8 } } }) end)
        :to_fail("the state has no 'a', or that of a measure with other options")
      expect(run(6, { on = {} }).step):to_be(12)
    end)
  end)
  it("with SWA, a rate of its own, and batch norms made anew", function()
    with_folder(function(folder)
      local function swa(name)
        return full_run(folder .. "/" .. name, { average = { mode = "swa", start = 0.4, lr = 1e-3,
          anneal_epochs = 2 } })
      end
      local whole = swa("whole")
      expect(whole.trainer.average.n_averaged):to_be(2)
      for _, step in ipairs { 2, 4, 7, 9 } do
        local path = ("%s/at%d"):format(folder, step)
        os.execute(("mkdir -p %s && cp %s/whole/step=%d.safetensors %s/last.safetensors"):format(path, folder, step,
          path))
        same_run(whole, swa("at" .. step))
      end
    end)
  end)
end)

-- ====}

-- {==== searches ====

describe("searches", function()
  local function searching()
    local model, opt, loader = world("cnn", "16-mixed")
    local schedule = optim.lr.Cosine(opt, { steps = 20 })
    local trainer = gb.Trainer { model = model, optimizer = opt, loss = F.cross_entropy, precision = "16-mixed",
      device = "cpu", progress = false, epochs = 2, schedule = schedule }
    return trainer, model, opt, loader
  end
  it("find a learning rate, and leave no trace", function()
    local plain, plain_model, plain_opt, plain_loader = searching()
    plain:fit(plain_loader)
    local trainer, model, opt, loader = searching()
    local before = gb.get_rng_state()
    local lr, curve = trainer:find_lr(loader, { first = 1e-5, last = 10, steps = 40 })
    expect(gb.get_rng_state().offset):to_be(before.offset)
    expect(lr > 1e-5 and lr < 10):to_be(true)
    expect(#curve.lr > 12 and #curve.lr == #curve.loss):to_be(true)
    trainer:fit(loader)
    same_tensors(model:parameters(), plain_model:parameters())
    same_states(opt:state_dict(), plain_opt:state_dict())
    for name, value in pairs(model:state_dict()) do expect(value):to_equal_bits(plain_model:state_dict()[name]) end
  end)
  it("find a batch by what two steps take, confirm it, and leave no trace", function()
    local plain, plain_model, _, plain_loader = searching()
    plain:fit(plain_loader)
    local trainer, model, _, loader = searching()
    local memory = 4 << 20
    local n, report = trainer:find_batch(loader, { memory = memory, device = nil })
    expect(report.confirmed):to_be(true)
    expect(report.measured <= memory):to_be(true)
    -- a line through two steps: scratch of convolutions grows less than their batch, and is foretold too large
    expect(report.predicted > 0.9 * report.measured and report.predicted < 1.15 * report.measured):to_be(true)
    expect(n > 8):to_be(true)
    trainer:fit(loader)
    same_tensors(model:parameters(), plain_model:parameters())
    expect(function() trainer:find_batch(loader, { memory = 100 }) end):to_fail("hold no sample")
    expect(function() trainer:find_batch(loader) end):to_fail("give memory")
    expect(function() trainer:find_lr(loader, { first = 1, last = 1 }) end):to_fail("'first' must be above 0")
  end)
end)

-- ====}

-- {==== parts for a loop written by hand ====

describe("the parts of a Trainer", function()
  it("measure and predict as the Trainer does", function()
    local model, opt = world("cnn", "bf16-mixed")
    local loader = data.DataLoader(kinds.cnn.data(), { batch_size = 4 })
    local average = optim.EMA(model)
    average:update_parameters()
    local trainer = gb.Trainer { model = model, optimizer = opt, loss = F.cross_entropy, precision = "bf16-mixed",
      device = "cpu", progress = false, metrics = { "accuracy", "f1" }, average = average }
    local options = { loss = F.cross_entropy, precision = "bf16-mixed", metrics = { "accuracy", "f1" },
      average = average }
    local a, b = trainer:validate(loader), gb.evaluate(model, loader, options)
    for _, name in ipairs { "val_loss", "val_accuracy", "val_f1" } do expect(b[name]):to_be(a[name]) end
    expect(model.training):to_be(true)
    options.loss, options.metrics = nil, nil
    expect(gb.predict(model, loader, options)):to_equal_bits(trainer:predict(loader))
    expect(gb.predict(model, loader, { precision = "bf16-mixed", batches = 1 }):size(1)):to_be(4)
    expect(function() gb.evaluate(model, {}) end):to_fail("evaluate takes a DataLoader, or a list of batches")
    expect(function() gb.evaluate(model, loader) end):to_fail("evaluate: the loss must be a tensor of one element")
    expect(function() gb.evaluate(model, loader, { loss = print, compute = print }) end):to_fail("not both")
    expect(function() gb.predict(model, gb.data.first_batches(loader, 0)) end):to_fail("no batches")
  end)
  it("read lists of batches, and the first ones of a loader, as a loader", function()
    local list = { { gb.ones(2, 3), gb.zeros(2) }, gb.ones(1, 3) }
    local loader = data.batches(list)
    expect(#loader):to_be(2)
    local seen = {}
    for x, y in loader:iter() do seen[#seen + 1] = { x, y } end
    expect(rawequal(seen[1][1], list[1][1]) or seen[1][1]:eq(list[1][1]):all():item()):to_be(true)
    expect(seen[2][2]):to_be(nil)
    local state = loader:state_dict()
    expect(state.epoch):to_be(1)
    expect(function() data.batches({ 3 }) end):to_fail("batch 1 of the list is a number")
    local shuffled = data.DataLoader(data.TensorDataset(gb.arange(12)), { batch_size = 4, shuffle = true })
    local few = data.first_batches(shuffled, 2)
    local a, b = {}, {}
    for x in few:iter() do a[#a + 1] = x end
    for x in few:iter() do b[#b + 1] = x end
    expect(#a):to_be(2)
    expect(a[2]):to_equal_bits(b[2])
    expect(#data.first_batches(shuffled, 9)):to_be(3)
  end)
  it("make optimizers and schedules by name", function()
    local model = Net()
    local opt = optim.named({ "AdamW", lr = 0.5, weight_decay = 0.25 }, model)
    expect(opt.param_groups[2].weight_decay):to_be(0.0)
    expect(optim.named(opt, model)):to_be(opt)
    local schedule = optim.lr.named({ "Linear", warmup = 0.5 }, opt, { steps = 4 })
    expect(optim.lr.named(schedule, opt)):to_be(schedule)
    for _ = 1, 4 do
      opt:step()
      schedule:step()
    end
    expect(opt.param_groups[1].lr):to_be(0.0)
    expect(function() optim.named("SDG", model) end):to_fail("there is no optimizer 'SDG'; did you mean 'SGD'?")
    expect(function() optim.lr.named("named", opt) end):to_fail("there is no schedule 'named'")
    expect(function() optim.lr.named({ "Linear", warmup = 0.5 }, opt) end):to_fail("a share as warmup needs")
    expect(function() optim.lr.named(function() end, opt) end):to_fail("it gave a nil")
  end)
  it("read times, and try folders before they are needed", function()
    expect(gb.seconds("01:02:03")):to_be(3723)
    expect(gb.seconds("1:00:00:00")):to_be(86400)
    expect(gb.seconds(0.5)):to_be(0.5)
    for _, text in ipairs { "", "1 hour", "0", "1:2:3:4:5" } do
      expect(function() gb.seconds(text) end):to_fail("'time' must be seconds above 0")
    end
    expect(function() gb.Checkpoints("/proc/nowhere"):prepare() end):to_fail("")
  end)
  it("save an average for the weights", function()
    with_folder(function(path)
      local model = nn.Linear(2, 2)
      local average = optim.EMA(model, { decay = 0.5 })
      average:update_parameters()
      gb.no_grad(function() model.weight:zero_() end)
      average:update_parameters()
      gb.io.save_checkpoint(path, { model = average:as_model(), live = model })
      local other = nn.Linear(2, 2)
      gb.io.load_checkpoint(path, { model = other })
      expect(other.weight:detach()):to_equal_bits(average:state_dict().averages.weight)
      gb.io.load_checkpoint(path, { live = other })
      expect(other.weight:detach()):to_equal_bits(gb.zeros(2, 2))
    end)
  end)
end)

-- ====}

-- {==== what ends a run, and what it tells ====

describe("fit", function()
  local list = {}
  for i = 1, 10 do list[i] = { gb.ones(2, 3), gb.zeros(2, 2) } end
  it("ends after steps, epochs, a time, a callback's false, or stop", function()
    local _, a = linear_world { steps = 13 }
    expect(a:fit(list).reason):to_be("13 steps")
    expect(a.epoch):to_be(1)
    expect(a.batch):to_be(3)
    local _, b = linear_world { epochs = 2 }
    expect(b:fit(list).reason):to_be("2 epochs")
    local _, c = linear_world { time = 1e-9, epochs = 5 }
    expect(c:fit(list).reason):to_be("1e-09 seconds")
    expect(c.step):to_be(1)
    local _, d = linear_world { epochs = 5, on = { step = function(t) if t.step == 3 then return false end end } }
    expect(d:fit(list).reason):to_be("the callback 'step' returned false")
    expect(d.step):to_be(3)
    local _, e = linear_world { epochs = 5, on = { epoch = function(t) t:stop("enough") end } }
    expect(e:fit(list).reason):to_be("enough")
    expect(e.step):to_be(10)
    expect(gb.Trainer({ model = nn.Linear(1, 1), optimizer = "SGD", time = "00:12:00:00" }).step):to_be(0)
  end)
  it("validates by shares of an epoch, steps, and every so many epochs", function()
    local function steps_of(options, first)
      local at = {}
      options.on = { validate = function(t) at[#at + 1] = t.step end }
      options.sanity, options.epochs = first or 0, 4
      local _, trainer = linear_world(options)
      trainer:fit(list, { list[1] })
      return table.concat(at, " ")
    end
    expect(steps_of { }):to_be("10 20 30 40")
    expect(steps_of({ }, 2)):to_be("10 20 30 40")
    expect(steps_of { validate_every = 0.5 }):to_be("5 10 15 20 25 30 35 40")
    expect(steps_of { validate_every = 15 }):to_be("15 30")
    expect(steps_of { validate_epochs = 3 }):to_be("30")
    expect(steps_of { validate_every = 0.3, accumulate = 4 }):to_be("1 2 3 4 5 6 7 8 9 10 11 12")
    expect(steps_of { validate_every = "10:00:00" }):to_be("")
  end)
  it("tells callbacks and loggers in order", function()
    local said, rows = {}, {}
    local on = {}
    for _, name in ipairs { "start", "epoch", "batch", "backward", "step", "validate", "improve", "save", "stop",
      "finish" } do
      on[name] = function() said[#said + 1] = name end
    end
    with_folder(function(folder)
      local logger = { log = function(_, values, step) rows[#rows + 1] = { values, step } end, close = print }
      local _, trainer = linear_world { epochs = 1, on = on, log = logger, log_every = 1, checkpoint = folder,
        sanity = 0 }
      trainer:fit({ list[1], list[2] }, { list[1] })
    end)
    expect(table.concat(said, " ")):to_be("start batch backward step batch backward step epoch validate improve save \z
      stop finish")
    expect(#rows):to_be(4)
    expect(rows[1][1].loss ~= nil and rows[1][1].lr ~= nil and rows[1][1].norm ~= nil):to_be(true)
    expect(rows[2][2]):to_be(2)
    expect(rows[3][1].train_loss ~= nil and rows[4][1].val_loss ~= nil):to_be(true)
  end)
  it("tries with few batches: limits, overfit, fast_dev_run", function()
    local _, a = linear_world { epochs = 2, limit = { train = 3, validate = 0.1 } }
    a:fit(list, list)
    expect(a.step):to_be(6)
    local seen = {}
    local _, b = linear_world { epochs = 3, overfit = 2, on = { batch = function(_, x) seen[#seen + 1] = x[1] end },
      metrics = { "mae" } }
    gb.manual_seed(1)
    local set = data.TensorDataset(gb.randn(20, 3), gb.randn(20, 2))
    b:fit(data.DataLoader(set, { batch_size = 4, shuffle = true }))
    expect(#seen):to_be(6)
    expect(seen[1]):to_equal_bits(seen[3])
    expect(seen[2]):to_equal_bits(seen[6])
    expect(b.values.val_mae):to_be_truthy()
    local _, c = linear_world { epochs = 9, fast_dev_run = true, checkpoint = "/nowhere/at/all",
      stop = { monitor = "x" } }
    c:fit(list, list)
    expect(c.step):to_be(1)
  end)
  it("makes optimizers and schedules by name, without decay on biases and norms", function()
    local model = Net()
    local trainer = gb.Trainer { model = model, optimizer = { "AdamW", lr = 0.5, weight_decay = 0.25 }, device = "cpu",
      schedule = { "Linear", warmup = 0.1 }, epochs = 2, loss = F.cross_entropy, progress = false }
    local groups = trainer.optimizer.param_groups
    expect(#groups):to_be(2)
    expect(groups[1].weight_decay):to_be(0.25)
    expect(groups[2].weight_decay):to_be(0.0)
    trainer:fit(select(3, world("cnn", "32-true")))
    expect(trainer.schedule.last_epoch):to_be(12)
    expect(trainer.optimizer.param_groups[1].lr):to_be(0.0)
  end)
  it("ends a schedule of steps or of epochs with the run, and tries it when the Trainer is made", function()
    local function last_lr(options)
      options.optimizer, options.epochs = { "SGD", lr = 0.5, momentum = 0.5 }, 4
      local _, trainer = linear_world(options)
      expect(trainer.optimizer.param_groups[1].lr):to_be(0.5) -- the trial leaves no trace
      expect(trainer.optimizer.param_groups[1].momentum):to_be(0.5)
      expect(trainer.optimizer.param_groups[1].initial_lr):to_be(nil)
      return trainer:fit(list).lr, trainer
    end
    local lr, trainer = last_lr { schedule = { "Linear", warmup = 1 }, schedule_every = "epoch", accumulate = 3 }
    expect(trainer.schedule.last_epoch):to_be(4)
    expect(trainer.optimizer.param_groups[1].lr):to_be(0.0)
    expect(lr):to_be_near(0.5 / 3) -- of the last epoch's steps: after the warmup of one epoch, 3 to go
    trainer = select(2, last_lr { schedule = { "OneCycle", max_lr = 2 } })
    expect(trainer.schedule.last_epoch):to_be(40)
    expect(trainer.optimizer.param_groups[1].lr < 1e-3):to_be(true)
  end)
  it("knows before the first step what is watched", function()
    local function starts(options, validation)
      local steps = 0
      options.epochs, options.metrics, options.on = 1, { a = { "mae" } }, { step = function() steps = steps + 1 end }
      local _, trainer = linear_world(options)
      local ok, why = pcall(trainer.fit, trainer, list, validation)
      expect(steps):to_be(ok and 10 or 0)
      return ok and trainer or why
    end
    local function fails(what, options, validation)
      expect(function() error(starts(options, validation), 0) end):to_fail(what)
    end
    fails("'stop' watches 'val_loss', and the run has none", { stop = {} })
    fails("give fit something to validate on", { stop = {} })
    fails("'stop' watches 'val_b', and the run has none; did you mean 'val_a'?", { stop = { monitor = "val_b" } }, list)
    fails("'stop' watches 'train_a', and the run has none", { stop = { monitor = "train_a" } }, list)
    expect(tostring(starts { stop = { strict = false } })):to_be("Trainer (32-true, step 10, epoch 1)")
    with_folder(function(folder)
      fails("'checkpoint' watches 'val_los', and the run has none; did you mean 'val_loss'?",
        { checkpoint = { folder, monitor = "val_los" } }, list)
      fails("have a field {epch}, and the run has no such value; did you mean 'epoch'?",
        { checkpoint = { folder, name = "{epch}" } }, list)
      local trainer = starts({ checkpoint = { folder, monitor = "val_a", name = "{step}-{val_a:.2f}-{train_a}" },
        train_metrics = true, stop = { monitor = "train_a" } }, list)
      expect(#trainer.checkpoint.kept):to_be(1)
    end)
  end)
  it("steps a plateau schedule by what is monitored", function()
    local model, trainer = linear_world { epochs = 4, sanity = 0, optimizer = nil,
      schedule = function(opt) return optim.lr.ReduceOnPlateau(opt, { patience = 0, factor = 0.5 }) end }
    trainer:fit({ { gb.zeros(2, 3), gb.zeros(2, 2) } }, { { gb.zeros(2, 3), gb.zeros(2, 2) } })
    expect(trainer.optimizer.param_groups[1].lr):to_be(0.125)
    expect(model.weight.dtype):to_be("float32")
  end)
  it("recomputes modules by name, with the same gradients", function()
    local function run(pattern)
      gb.manual_seed(2)
      local model = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 2))
      local trainer = gb.Trainer { model = model, optimizer = { "SGD", lr = 0.1 }, loss = F.mse_loss, epochs = 2,
        progress = false, device = "cpu", recompute = pattern }
      trainer:fit(list)
      return model:parameters()
    end
    same_tensors(run("[0-2]"), run(nil))
    expect(function() run("nothing") end):to_fail("recompute: no module's name matches 'nothing'")
  end)
  it("measures throughput and the share of a device's operations", function()
    local _, trainer = linear_world { epochs = 2, peak_flops = 1e12 }
    local values = trainer:fit(list)
    expect(values.samples_per_second > 0):to_be(true)
    expect(values.mfu > 0 and values.mfu < 1):to_be(true)
  end)
  it("says what share of its steps waits for data", function()
    local function spin(seconds)
      local ends = gb.clock() + seconds
      while gb.clock() < ends do end
    end
    local slow = gb.data.DataLoader(gb.data.Dataset(16, function(i)
      spin(0.005)
      return list[1][1][i % 2 + 1], list[1][2][i % 2 + 1]
    end), { batch_size = 4 })
    local rows = {}
    local logger = { log = function(_, row) rows[#rows + 1] = row end, close = function() end }
    local _, trainer = linear_world { epochs = 1, log = logger, log_every = 1 }
    local values = trainer:fit(slow)
    local seconds, batches = slow:waited()
    expect(batches):to_be(4)
    expect(seconds >= 16 * 0.005):to_be(true)
    expect(values.data_wait > 0.5 and values.data_wait <= 1):to_be(true)
    expect(rows[2].data_wait > 0.5):to_be(true)
    _, trainer = linear_world { epochs = 1, on = { backward = function() spin(0.01) end } }
    values = trainer:fit(list, slow) -- what a validation waits for is no part of a step
    expect(values.data_wait < 0.5):to_be(true)
    local said = silently(function()
      gb.Trainer({ model = nn.Linear(3, 2), optimizer = "SGD", loss = F.mse_loss, epochs = 1, device = "cpu"
        }):fit(slow)
    end)
    expect(said:find("^epoch 1  waits for data %d+%.%d %%  loss ") ~= nil):to_be(true)
  end)
  it("validates and saves when the time is over", function()
    with_folder(function(folder)
      local said = {}
      local _, trainer = linear_world { time = 1e-9, epochs = 5, sanity = 0, checkpoint = folder, on = {
        validate = function() said[#said + 1] = "validate" end, save = function() said[#said + 1] = "save" end } }
      trainer:fit(list, { list[1] })
      expect(table.concat(said, " ")):to_be("validate save")
      expect(trainer.step):to_be(1)
    end)
  end)
  it("trains in every precision, with anomaly mode, and on batches that are no pair of tensors", function()
    for _, precision in ipairs { "32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true" } do
      gb.manual_seed(5)
      local losses, model = {}, nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2))
      local trainer = gb.Trainer { model = model, optimizer = { "AdamW", lr = 0.05 }, device = "cpu", epochs = 3,
        precision = precision, anomaly = true, progress = false, count = function(batch) return #batch end,
        compute = function(m, batch) return F.mse_loss(m(gb.cat(batch)), gb.ones(2 * #batch, 2)) end,
        on = { epoch = function(_, v) losses[#losses + 1] = v.train_loss end } }
      trainer:fit { { { gb.ones(2, 3), gb.zeros(2, 3) } }, { { gb.ones(2, 3) } }, { { gb.zeros(2, 3) } } }
      expect(losses[3] < losses[1]):to_be(true)
    end
    expect(function()
      gb.Trainer({ model = nn.Linear(1, 1), optimizer = "SGD", device = "cpu", epochs = 1, progress = false,
        anomaly = true, compute = function(m) return (m(gb.ones(1, 1)) - 1e9):sqrt():sum() end }):fit { { 1 } }
    end):to_fail("NaN")
  end)
  it("writes to real loggers, and profiles a step", function()
    with_folder(function(folder)
      os.execute("mkdir " .. folder)
      local _, trainer = linear_world { epochs = 1, log_every = 2, profile = 2, log = {
        gb.Logger.jsonl(folder .. "/a.jsonl"), gb.Logger.csv(folder .. "/a.csv"), gb.Logger.tensorboard(folder) } }
      local text = silently(function() trainer:fit(list, { list[1] }) end)
      expect(text:find("linear_backward", 1, true) ~= nil):to_be(true)
      local count = 0
      for line in io.lines(folder .. "/a.jsonl") do
        count = count + 1
        expect(gb.io.json_decode(line).step):to_be(math.min(2 * count, 10))
      end
      expect(count):to_be(7) -- five of steps, one of the epoch, one of the validation
    end)
  end)
  it("predicts all rows in order, with the dropout off, and leaves the modes as they were", function()
    local model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    model[1]:eval()
    local trainer = gb.Trainer { model = model, optimizer = "SGD", device = "cpu", progress = false }
    local x = gb.randn(10, 3)
    local y = trainer:predict(data.DataLoader(data.TensorDataset(x), { batch_size = 4 }))
    expect(y):to_be_close(model[1](x):detach(), 1e-6)
    expect(model[1].training):to_be(false)
    expect(model[2].training):to_be(true)
  end)
end)

-- ====}

-- {==== wrong options ====

describe("gb.Trainer", function()
  local function make(options)
    options.model = options.model or nn.Linear(3, 2)
    options.optimizer = options.optimizer or "SGD"
    options.progress = false
    return gb.Trainer(options)
  end
  local wrong = {
    { { epoch = 3 }, "there is no option 'epoch'; did you mean 'epochs'?" },
    { { epochs = 0 }, "'epochs' must be a whole number from 1, got 0" },
    { { accumulate = 1.5 }, "'accumulate' must be a whole number from 1, got 1.5" },
    { { clip = nan }, "'clip' must be a number above 0" },
    { { precision = "17" }, "unknown precision '17'" },
    { { optimizer = { "AdmW" } }, "there is no optimizer 'AdmW'; did you mean 'AdamW'?" },
    { { schedule = {}, epochs = 1 }, "'schedule' begins with a name" },
    { { schedule = 3 }, "'schedule' must be a schedule" },
    { { schedule = "Cosin", epochs = 1 }, "there is no schedule 'Cosin'; did you mean 'Cosine'?" },
    { { schedule = { "Cosine", warmp = 1 }, epochs = 1 }, "unknown option 'warmp'; did you mean 'warmup'?" },
    { { schedule = { "Cosine", last = "x" }, epochs = 1 }, "'last' must be a number" },
    { { schedule = { "Cosine", warmup = 0.5 }, time = 1 }, "a share as warmup needs epochs or steps" },
    { { schedule = "Cosine", time = 1 }, "'steps' is missing" },
    { { schedule = optim.lr.Step(optim.SGD(nn.Linear(1, 1):parameters(), { lr = 1 }), { step_size = 1 }) },
      "'schedule' is one of another optimizer" },
    { { schedule = "ReduceOnPlateau", schedule_every = "step" }, "the schedule goes by a measure: check" },
    { { schedule = { "Step", step_size = 1 }, schedule_every = "check" }, "only ReduceOnPlateau steps at checks" },
    { { average = optim.EMA(nn.Linear(3, 2)) }, "'average' is one of another model" },
    { { average = { mode = "ema", lr = 1 } }, "unknown option 'lr'" },
    { { average = { mode = "swa", lr = -1 }, epochs = 1 }, "'swa_lr' must be a number from 0" },
    { { average = { mode = "swa", start = 2.0 }, epochs = 1 }, "'start' of average is a share of the epochs" },
    { { average = "swa", steps = 5 }, "begins at a share of the epochs; give epochs" },
    { { train_metrics = true }, "'train_metrics' needs metrics" },
    { { count = data.DataLoader(data.TensorDataset(gb.rand(2))) }, "'count' must be a function" },
    { { optimizer = 3 }, "'optimizer' must be an optimizer" },
    { { save_on_error = true }, "'save_on_error' needs checkpoint" },
    { { shards = 3 }, "shards is 3; it must be a power of two" },
    { { shards = true }, "'shards' must be a power of two, or false" },
    { { model = 3 }, "'model' must be a module of gb.nn" },
    { { time = "1 hour" }, "'time' must be seconds above 0" },
    { { on = { stp = print } }, "'on' has no event 'stp'; did you mean 'step'?" },
    { { on = { step = 3 } }, "'on.step' is a number, no function" },
    { { log = { 3 } }, "'log' [1] is no logger" },
    { { checkpoint = { keep = 1 } }, "'checkpoint' needs a folder" },
    { { metrics = { "accurcy" } }, "there is no measure 'accurcy'; did you mean 'accuracy'?" },
    { { limit = { trian = 1 } }, "'limit' has train, validate and predict" },
    { { spikes = { windw = 1 } }, "'spikes' has window and warmup" },
    { { optimizer = { "LBFGS" } }, "'optimizer' cannot be LBFGS" },
    { { optimizer = "LBFGS" }, "'optimizer' cannot be LBFGS" },
    { { optimizer = optim.LBFGS(nn.Linear(1, 1):parameters()) }, "'optimizer' cannot be LBFGS" },
    { { optimizer = { "EMA" } }, "there is no optimizer 'EMA'" },
    { { optimizer = { "groups" } }, "there is no optimizer 'groups'" },
    { { loss = print, compute = print }, "give loss or compute, not both" },
    { { validate_every = 1.5 }, "'validate_every' must be a share of an epoch" },
    { { average = { mode = "ema", start = 0.5 } }, "'start' of average" },
    { { scaler = 3 }, "'scaler' must be a GradScaler" },
    { { device = "tpu" }, "tpu" },
  }
  for i, row in ipairs(wrong) do
    it("turns down wrong options: " .. i, function()
      expect(function()
        make(row[1])
      end):to_fail(row[2])
    end)
  end
  it("takes a module for the loss", function()
    local trainer = make { loss = nn.CrossEntropyLoss(), epochs = 1, device = "cpu" }
    expect(trainer:fit({ { gb.ones(1, 3), gb.tensor { 1 } } }).loss > 0):to_be(true)
  end)
  it("says what it needs", function()
    expect(function() gb.Trainer {} end):to_fail("give the model")
    expect(function() gb.Trainer { model = nn.Linear(1, 1) } end):to_fail("give the optimizer")
    expect(function() make({}):fit({ { gb.ones(1, 3) } }) end):to_fail("give epochs, steps or time")
    expect(function() make({ epochs = 1 }):fit({ { gb.ones(1, 3) } }) end):to_fail("the loss must be a tensor of one")
    expect(function() make({ epochs = 1 }):fit(3) end):to_fail("fit takes a DataLoader, or a list of batches")
    expect(function() make({ epochs = 1 }):fit({}) end):to_fail("fit takes a DataLoader, or a list of batches")
    expect(function() make({ epochs = 1, resume = true }):fit({ { gb.ones(1, 3) } }) end)
      :to_fail("resume = true needs checkpoint")
  end)
  it("reads all spellings of a precision", function()
    for spelling, name in pairs { [32] = "32-true", ["32-true"] = "32-true", [16] = "16-mixed",
      ["16-mixed"] = "16-mixed",
      bf16 = "bf16-mixed", ["bf16-mixed"] = "bf16-mixed", ["16-true"] = "16-true", ["bf16-true"] = "bf16-true",
      fp16 = "16-mixed", amp = "16-mixed", mixed_float16 = "16-mixed", mixed_bfloat16 = "bf16-mixed" } do
      expect(make({ precision = spelling }).precision.name):to_be(name)
    end
  end)
  it("names the file of a run that was stopped, and goes on from it, without a last one too", function()
    with_folder(function(folder)
      os.execute("mkdir " .. folder)
      local runs = stopped_run(folder, [[last = false, every_steps = 1000]], [[
        step = function(t) if t.step == 3 then ask() end end]])
      expect(runs[1]:match("stopped after [^\n]*")):to_be("stopped after step 3, in epoch 1; " .. folder ..
        "/files/last.safetensors holds all of it: run the same with resume = true to go on")
      expect(runs[2]:find("loaded at step 3", 1, true) ~= nil):to_be(true)
    end)
  end)
  it("ends with a whole step where a callback runs another Trainer", function()
    with_folder(function(folder)
      os.execute("mkdir " .. folder)
      -- asked before the inner run: its steps end none of the outer one
      local runs = stopped_run(folder, "", [[batch = function(t) if t.step == 4 then ask() inner() end end]])
      expect(runs[1]:match("stopped after step %d+")):to_be("stopped after step 5")
      expect(runs[2]:find("loaded at step 5", 1, true) ~= nil):to_be(true)
      -- and after it: the validation that follows the step belongs to it
      os.execute("rm -r " .. folder .. "/files")
      runs = stopped_run(folder, "every_steps = 1000", [[
        step = function(t) if t.step == 5 then inner() ask() end end,
        validate = function(t) print("validated at " .. t.step) end]])
      expect(runs[1]:find("validated at 5\nstopped after step 5", 1, true) ~= nil):to_be(true)
    end)
  end)
  it("lets go of a run that fails, and can run again", function()
    local fails = true
    local trainer = make { epochs = 1, compute = function(m, x)
      if fails then error("boom") end
      return m(x):sum()
    end }
    expect(function() trainer:fit { { gb.ones(1, 3) } } end):to_fail("boom")
    fails = false
    trainer:fit { { gb.ones(1, 3) } }
    expect(trainer.step):to_be(1)
    local inner
    local other = make { epochs = 1, loss = function(y) return y:sum() end, on = { step = function(t)
      inner = select(2, pcall(t.fit, t, { { gb.ones(1, 3) } }))
    end } }
    other:fit { { gb.ones(1, 3), gb.ones(1) } }
    expect(tostring(inner):find("fit is running", 1, true) ~= nil):to_be(true)
  end)
  it("keeps to itself what a recipe might change", function()
    local trainer = make { epochs = 1, loss = function(y) return y:sum() end }
    trainer.model, trainer.step = nil, 99
    expect(gb.nn.is_module(trainer.model)):to_be(true)
    expect(tostring(trainer)):to_be("Trainer (32-true, step 0, epoch 0)")
  end)
  it("takes no logger, one, or a list", function()
    with_folder(function(folder)
      os.execute("mkdir " .. folder)
      for i, log in ipairs { {}, gb.Logger.jsonl(folder .. "/2"), { gb.Logger.jsonl(folder .. "/3") } } do
        make({ epochs = 1, log_every = 1, log = log, loss = function(y) return y:sum() end })
          :fit { { gb.ones(1, 3), gb.ones(1) } }
        expect(exists(folder .. "/" .. i)):to_be(i > 1)
      end
    end)
  end)
end)

-- ====}

gb.test.finish()

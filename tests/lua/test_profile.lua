-- test_profile.lua - gb.profile: times that add up, ops under their modules and lines, gradients under those of the op
-- they belong to, and a trace that nests on every row, in microseconds, with arrows from ops to their gradients.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, F = gb.nn, gb.nn.functional

gb.manual_seed(3)
local model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
local optimizer = gb.optim.SGD(model:parameters(), { lr = 0.01 })
local x, y = gb.randn(8, 16), gb.randint(0, 4, { 8 })
local quiet = { print = false, model = model }

local forward_line
local function step()
  optimizer:zero_grad()
  forward_line = debug.getinfo(1, "l").currentline + 1
  local loss = F.cross_entropy(model(x), y)
  loss:backward()
  optimizer:step()
end
step()

local function row_of(rows, name, value, phase)
  for _, row in ipairs(rows) do
    if row[name] == value and (not phase or row.phase == phase) then return row end
  end
  error(("no row with %s %s"):format(name, value))
end

describe("a report", function()
  local report = gb.profile(step, quiet)
  it("counts ops by phase, and their times add up to no more than the whole", function()
    expect(row_of(report.ops, "op", "linear", "forward").calls):to_be(2)
    expect(row_of(report.ops, "op", "linear_backward", "backward").calls):to_be(2)
    expect(row_of(report.ops, "op", "optim_step", "step").calls):to_be(1)
    for _, rows in ipairs { report.ops, report.modules, report.lines } do
      local sum = 0
      for _, row in ipairs(rows) do
        expect(row.self >= -1e-9):to_be(true)
        sum = sum + row.self
      end
      expect(sum > 0 and sum <= report.seconds + 1e-6):to_be(true)
    end
    expect(report.lost):to_be(0)
  end)
  it("puts gradients under the module and the line of their op", function()
    local second = row_of(report.modules, "module", "[3]")
    expect(second.forward > 0 and second.backward > 0):to_be(true)
    local found
    for _, row in ipairs(report.lines) do
      if row.line:match("test_profile%.lua:(%d+)$") == tostring(forward_line) then found = row end
    end
    expect(found.forward > 0 and found.backward > 0):to_be(true)
  end)
  it("names modules by their class where no model is given", function()
    row_of(gb.profile(step, { print = false }).modules, "module", "Linear")
  end)
  it("has the memory by category", function()
    expect(report.memory.parameters > 0):to_be(true)
    expect(report.memory.gradients > 0):to_be(true)
    expect(report.memory_total >= report.memory.parameters + report.memory.gradients):to_be(true)
  end)
  it("is a text", function()
    local text = tostring(report)
    for _, part in ipairs { "linear_backward", "us a call", "module", "memory at most: parameters" } do
      expect(text:find(part, 1, true) ~= nil):to_be(true)
    end
    expect(tostring(gb.profile(function() end, quiet)):find("0 ops", 1, true) ~= nil):to_be(true)
    local short = tostring(gb.profile(step, { print = false, rows = 1 }))
    expect(short:find("more\n", 1, true) ~= nil):to_be(true)
  end)
  it("says how many events found no room", function()
    local little = gb.profile(step, { print = false, events = 5 })
    expect(little.lost > 10):to_be(true)
    expect(tostring(little):find("found no room", 1, true) ~= nil):to_be(true)
  end)
  it("has room for as many events as there could be", function()
    expect(function() gb.profile(step, { print = false, events = 1 << 62 }) end):to_fail("it may be at most 16777216")
  end)
  it("has the time of kernels where a device has its own", function()
    local sum = 0
    for _, row in ipairs(report.ops) do sum = sum + row.kernel end
    expect(sum > 0):to_be(x.device ~= "cpu")
  end)
end)

describe("what runs under a profile", function()
  it("computes what it computes without one", function()
    local function run(profiled)
      gb.manual_seed(5)
      local net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))
      local input = gb.randn(4, 8)
      local function work() net(input):sum():backward() end
      if profiled then gb.profile(work, { print = false }) else work() end
      return net[1].weight.grad
    end
    expect(run(true)):to_equal_bits(run(false))
  end)
  it("may fail, and ends the profile", function()
    expect(function() gb.profile(function() error("no") end, quiet) end):to_fail("no")
    expect(function() gb.profile(function() model(gb.ones(2)) end, quiet) end):to_fail("linear")
    expect(gb.profile(step, quiet).lost):to_be(0)
  end)
  it("may not be profiled twice, nor yield", function()
    expect(function() gb.profile(function() gb.profile(step, quiet) end, quiet) end):to_fail("profiles do not nest")
    local co = coroutine.create(function() gb.profile(coroutine.yield, quiet) end)
    local ok, why = coroutine.resume(co)
    expect(ok):to_be(false)
    expect(tostring(why):find("yield", 1, true) ~= nil):to_be(true)
    expect(gb.profile(step, quiet).lost):to_be(0)
  end)
  it("may end in a coroutine that is never resumed", function()
    local co = coroutine.create(function()
      gb.profile(function() coroutine.close(coroutine.create(print)) error({}) end, quiet)
    end)
    coroutine.resume(co)
    expect(gb.profile(step, quiet).lost):to_be(0)
  end)
  it("may be audited meanwhile", function()
    local report = gb.profile(function() gb.amp.audit(model, x, { print = false }) end, quiet)
    expect(row_of(report.ops, "op", "linear", "forward").calls):to_be(2)
  end)
  it("may recompute", function()
    local report = gb.profile(function()
      gb.recompute(model, x:clone():requires_grad_()):sum():backward()
    end, quiet)
    expect(row_of(report.ops, "op", "linear", "recompute").calls):to_be(2)
  end)
end)

local function trace_of(fn)
  local path = os.tmpname()
  gb.profile(fn, { print = false, model = model, file = path })
  local file <close> = assert(io.open(path, "rb"))
  local trace = gb.io.json_decode(file:read("a"))
  os.remove(path)
  return trace
end

-- What a viewer does with a trace, as Perfetto's importer does it: events by their time, of equal times in the order of
-- the file; on each row a stack of what is open; arrows bind to what is open where they begin and end. Gives what it
-- would count as an error. No slice may be cut by another's end, and a parent stands before its children.
local function import(trace)
  local errors, stacks, flows, named = {}, {}, {}, {}
  local function fault(e, text) errors[#errors + 1] = text .. ": " .. gb.io.json_encode(e) end
  local function ns(us) return math.floor(us * 1000 + 0.5) end
  local order = {}
  for place, e in ipairs(trace.traceEvents) do
    if math.type(e.pid) ~= "integer" or type(e.name) ~= "string" or type(e.ph) ~= "string" then fault(e, "no event") end
    if e.ph == "M" then named[e.tid or e.pid] = true
    elseif type(e.ts) ~= "number" or e.ts < 0 then fault(e, "no time")
    else order[#order + 1] = { e = e, at = ns(e.ts), place = place } end
  end
  table.sort(order, function(a, b)
    if a.at ~= b.at then return a.at < b.at end
    return a.place < b.place
  end)
  local kinds = {
    X = function(e, at, open)
      local ends = at + ns(e.dur)
      if type(e.dur) ~= "number" or e.dur < 0 then fault(e, "no duration") end
      if #open > 0 and ends > open[#open] then fault(e, "is cut by the end of what it lies in") end
      if e.args ~= nil and type(e.args) ~= "table" then fault(e, "arguments are an object") end
      open[#open + 1] = ends
    end,
    s = function(e, _, open)
      if #open == 0 then fault(e, "an arrow begins in nothing") end
      if flows[e.id] then fault(e, "an arrow begins twice") end
      flows[e.id] = { e.cat, e.name }
    end,
    f = function(e, _, open)
      local from = flows[e.id]
      if #open == 0 then fault(e, "an arrow ends in nothing") end
      local fits = from and not from.ended and from[1] == e.cat and from[2] == e.name
      if not fits then fault(e, "an arrow without a beginning") end
      if from then from.ended = true end
    end,
    C = function(e)
      for _, value in pairs(e.args) do
        if type(value) ~= "number" then fault(e, "a counter of no numbers") end
      end
    end,
  }
  for _, entry in ipairs(order) do
    local e = entry.e
    local row = e.ph == "C" and "counter" or e.tid
    local open = stacks[row] or {}
    stacks[row] = open
    while #open > 0 and open[#open] <= entry.at do open[#open] = nil end
    if e.ph ~= "C" and not named[e.tid] then fault(e, "a row without a name") end
    if kinds[e.ph] then kinds[e.ph](e, entry.at, open) else fault(e, "an unknown kind") end
  end
  for id, from in pairs(flows) do
    if not from.ended then errors[#errors + 1] = "arrow " .. id .. " ends nowhere" end
  end
  return errors
end

describe("a trace", function()
  local trace = trace_of(function() step() step() end)
  local events = trace.traceEvents

  it("is taken by a viewer without an error, whatever ran", function()
    expect(table.concat(import(trace), "\n")):to_be("")
    local attention = nn.TransformerEncoderLayer(16, 2, { dim_feedforward = 32 })
    local runs = {
      function() gb.recompute(model, x:clone():requires_grad_()):sum():backward() end,
      function() attention(gb.randn(2, 3, 16)):sum():backward() end, -- ops made of ops
      function() gb.amp.autocast("bfloat16", function() F.cross_entropy(model(x), y):backward() end) end,
      function()
        local a = gb.randn(4):requires_grad_()
        gb.grad((a * a * a):sum(), a, { create_graph = true })[1]:sum():backward()
      end,
      function() end,
    }
    for i, run in ipairs(runs) do
      local ok, made = pcall(trace_of, run)
      if not ok then error(("run %d: %s"):format(i, made)) end
      expect(table.concat(import(made), "\n")):to_be("")
    end
    local broken = { traceEvents = { { name = "a", ph = "X", ts = 0, dur = 5, pid = 1, tid = 1 },
      { name = "b", ph = "X", ts = 3, dur = 5, pid = 1, tid = 1 }, { name = "c", ph = "f", id = 1, ts = 9, pid = 1,
      tid = 1 } } }
    expect(#import(broken)):to_be(6)
  end)

  it("nests on every row", function()
    local rows, count = {}, 0
    for _, e in ipairs(events) do
      if e.ph == "X" then
        expect(e.ts >= 0 and e.dur >= 0):to_be(true)
        rows[e.tid] = rows[e.tid] or {}
        -- the trace's decimals are nanoseconds: whole ones compare exactly
        local from = math.floor(e.ts * 1000 + 0.5)
        table.insert(rows[e.tid], { from = from, to = from + math.floor(e.dur * 1000 + 0.5), place = #rows[e.tid] })
        count = count + 1
      end
    end
    expect(count > 30):to_be(true)
    for _, row in pairs(rows) do
      table.sort(row, function(a, b)
        if a.from ~= b.from then return a.from < b.from end
        if a.to ~= b.to then return a.to > b.to end
        return a.place < b.place
      end)
      local open = {}
      for _, e in ipairs(row) do
        while #open > 0 and open[#open].to <= e.from do open[#open] = nil end
        if #open > 0 then expect(e.to <= open[#open].to):to_be(true) end
        open[#open + 1] = e
      end
    end
  end)
  it("names its process and rows, and counts in microseconds", function()
    local names, last = {}, 0
    for _, e in ipairs(events) do
      if e.ph == "M" and e.args.name then names[e.args.name] = true end
      if e.ph == "X" then last = math.max(last, e.ts + e.dur) end
    end
    expect(names.gibbous and names.ops):to_be(true)
    local seconds = gb.time(step)
    expect(last > 1 and last < 1e6 * (1 + 1e3 * seconds)):to_be(true)
    expect(trace.displayTimeUnit):to_be("ms")
  end)
  it("has arrows from each op to its gradient", function()
    local starts, ends, inside = {}, {}, {}
    for _, e in ipairs(events) do
      if e.ph == "s" then starts[e.id] = e end
      if e.ph == "f" then ends[e.id] = e end
      if e.ph == "X" then inside[e.ts] = inside[e.ts] or {}; inside[e.ts][e.name] = e end
    end
    local arrows, linears = 0, 0
    for id, from in pairs(starts) do
      local to = ends[id]
      expect(to.ts > from.ts and to.bp == "e"):to_be(true)
      expect(inside[from.ts] and inside[to.ts] and true):to_be(true)
      if inside[from.ts].linear then
        expect(inside[to.ts].linear_backward ~= nil):to_be(true)
        linears = linears + 1
      end
      arrows = arrows + 1
    end
    for id in pairs(ends) do expect(starts[id] ~= nil):to_be(true) end
    expect(linears):to_be(4)
    expect(arrows >= 8):to_be(true)
  end)
  it("counts bytes by category", function()
    local counters = 0
    for _, e in ipairs(events) do
      if e.ph == "C" then
        counters = counters + 1
        expect(e.args.parameters > 0):to_be(true)
      end
    end
    expect(counters > 2):to_be(true)
  end)
  it("is not written where files may not be", function()
    expect(function() gb.profile(step, { print = false, file = "/no/such/folder/trace.json" }) end):to_fail("cannot")
  end)
end)

gb.test.finish()

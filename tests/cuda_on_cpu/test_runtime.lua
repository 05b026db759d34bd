-- test_runtime.lua - what lies between recipes and devices: several devices, uploads, the host's lead, gb.anomaly,
-- ranges for profilers, memory.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, F, amp, optim = gb.nn, gb.nn.functional, gb.amp, gb.optim
gb.set_default_device("cuda")
local devices, emulated = gb.cuda.device_count(), gb.cuda.properties().name == "emulated on the CPU"

-- What a fresh process prints that has this in its environment.
local function process(environment, script)
  local name = os.tmpname()
  local file <close> = assert(io.open(name, "w"))
  file:write(script)
  file:close()
  local i = 0
  while arg[i - 1] do i = i - 1 end
  local pipe = assert(io.popen(("%s '%s' '%s' 2>&1"):format(environment, arg[i], name)))
  local text = pipe:read("a")
  pipe:close()
  os.remove(name)
  return text
end

-- The text has the pattern in it; where not, the failure shows it.
local function matches(text, pattern) expect(text:find(pattern) and pattern or text):to_be(pattern) end

-- What a fault is told as, by its op or by the next wait: an overflow before it may have every op looked at.
local function fault_of(fn)
  local fine, why = pcall(function() fn() gb.cuda.synchronize() end)
  expect(fine):to_be(false)
  return why
end

describe("uploads", function()
  it("bring any size, also more than the ring holds, in any mixture", function()
    local kept = {}
    for i, n in ipairs { 1, 7, 16384, 16385, 1 << 20, (1 << 20) + 3, 5, 20000000, 3 } do
      kept[i] = gb.arange(n, { dtype = "float32", device = "cpu" }):add_(i)
      kept[-i] = kept[i]:to("cuda")
    end
    for i = 1, #kept do expect(kept[-i]:cpu()):to_equal_bits(kept[i]) end
  end)
  it("leave the host's memory free to be changed at once", function()
    for _, n in ipairs { 10, 100000 } do
      local host, sums = gb.zeros(n, { device = "cpu" }), {}
      for i = 1, 20 do
        host:fill_(i)
        sums[i] = host:to("cuda"):sum()
      end
      for i = 1, 20 do expect(sums[i]:item()):to_be(i * n) end
    end
  end)
  it("cross from page-locked batches, whose memory is used again only when they have", function()
    local x, y = gb.rand(700, 300, { device = "cpu" }), gb.arange(700, { device = "cpu" })
    for _, given in ipairs { { shuffle = true, workers = 2 }, { prefetch = 0 }, { sampler = { 5, 1, 700, 32 } },
      { batches = 9 }, { prefetch = 1, shuffle = true, drop_last = true } } do
      local function run(pinned)
        local options = { batch_size = 100, seed = 4, pin_memory = pinned }
        for name, value in pairs(given) do options[name] = value end
        local loader = gb.data.DataLoader(gb.data.TensorDataset(x, y), options)
        local sums = {}
        for _ = 1, 2 do
          for a, b in loader:iter("cuda") do
            expect(a.device .. b.device):to_be("cuda:0cuda:0")
            sums[#sums + 1] = (a * (b:unsqueeze(2) + 1)):double():sum() -- nothing waits for it here
          end
        end
        expect(tostring(loader):find("page-locked", 1, true) ~= nil):to_be(pinned)
        for i, sum in ipairs(sums) do sums[i] = sum:item() end
        return sums
      end
      local plain, pinned = run(false), run(true)
      expect(#pinned):to_be(#plain)
      for i, sum in ipairs(plain) do expect(pinned[i]):to_be(sum) end
    end
  end)
  it("leave page-locked batches to the recipe, as many as it keeps", function()
    local x = gb.arange(1000, { device = "cpu" }):unsqueeze(2):expand(1000, 200):contiguous()
    local loader = gb.data.DataLoader(gb.data.TensorDataset(x), { batch_size = 100, pin_memory = true })
    local kept = {}
    for a in loader:iter() do kept[#kept + 1] = { a, a:to("cuda") } end
    loader = nil -- luacheck: ignore
    collectgarbage()
    for i, pair in ipairs(kept) do
      pair[1]:add_(1) -- after it has crossed
      expect(pair[2][1][1]:item()):to_be(100 * (i - 1))
      expect(pair[1][100][200]:item()):to_be(100 * i)
    end
  end)
  it("go into memory that kernels before still read", function()
    local a, total = gb.ones(200000), gb.zeros(200000)
    local host = gb.zeros(200000, { device = "cpu" })
    for i = 1, 10 do
      host:fill_(i)
      a:copy_(host)
      total:add_(a)
    end
    expect(total:sum():item()):to_be(55 * 200000)
  end)
end)

describe("devices", function()
  it("are chosen by cuda:N, and one that is not there is named", function()
    expect(gb.ones(1).device):to_be("cuda:0")
    expect(function() gb.ones(1, { device = "cuda:" .. devices }) end):to_fail("does not exist; there")
    expect(function() gb.ones(1, { device = "cuda:99999999999" }) end):to_fail("does not exist")
    expect(function() gb.ones(1, { device = "cuda:-1" }) end):to_fail("unknown device")
    expect(function() gb.cuda.memory_allocated("cpu") end):to_fail("expects a CUDA device")
    expect(#gb.devices()):to_be(devices + 1)
  end)
  if devices < 2 then return end
  it("compute, and hand tensors over in order", function()
    for round = 1, 8 do
      local a = gb.arange(50000, { device = "cuda:0" })
      for _ = 1, 3 do a = a + round end
      local b = a:to("cuda:1")
      a:zero_() -- after the copy, not before it
      local c = (b * 2):to("cuda:0")
      b:zero_()
      expect(c.device):to_be("cuda:0")
      expect(c:sum():item()):to_be(2 * (50000 * 49999 // 2 + 3 * round * 50000))
    end
  end)
  it("are where gb.tensor copies a tensor of another one to", function()
    local x = gb.arange(5, { device = "cuda:0" })
    for _, device in ipairs { "cpu", "cuda:0", "cuda:1" } do
      local y = gb.tensor(x, { device = device, dtype = "float32" })
      expect(y.device):to_be(device)
      expect(y.dtype):to_be("float32")
      y:add_(1)
      expect(y:sum():item()):to_be(15)
    end
    expect(x:sum():item()):to_be(10)
  end)
  it("do not mix in an op", function()
    expect(function() return gb.ones(2) + gb.ones(2, { device = "cuda:1" }) end):to_fail("found cuda:0 and cuda:1")
  end)
  it("count their own memory", function()
    collectgarbage()
    collectgarbage()
    local first, second = gb.cuda.memory_allocated(0), gb.cuda.memory_allocated("cuda:1")
    local kept = gb.ones(1 << 18, { device = "cuda:1" })
    expect(gb.cuda.memory_allocated(0)):to_be(first)
    expect(gb.cuda.memory_allocated(1) - second >= 4 << 18):to_be(true)
    expect(kept:sum():item()):to_be(1 << 18)
    matches(gb.cuda.memory_summary(1), "MiB on cuda:1")
  end)
  it("train a model each, to the same bits", function()
    local function train(device)
      gb.manual_seed(3)
      local model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3)):to(device)
      local opt, scaler = optim.AdamW(model:parameters(), { lr = 0.01 }),
        amp.GradScaler { init_scale = 2 ^ 20, growth_interval = 2 }
      for i = 1, 6 do
        local x = gb.arange(24, { dtype = "float32", device = "cpu" }):mul(0.1 * i):sin():reshape(4, 6):to(device)
        opt:zero_grad()
        local loss = amp.autocast({ dtype = "float16" }, function() return model(x):square():mean() end)
        scaler:scale(loss):backward()
        scaler:step(opt)
        scaler:update()
      end
      return model, scaler:stats()
    end
    local a, sa = train("cuda:0")
    local b, sb = train("cuda:1")
    expect(sb.scale):to_be(sa.scale)
    local pa, pb = a:parameters(), b:parameters()
    for i = 1, #pa do expect(pb[i]:detach():cpu()):to_equal_bits(pa[i]:detach():cpu()) end
  end)
  it("tell their faults by themselves", function()
    local why = fault_of(function()
      F.embedding(gb.tensor({ 9 }, { device = "cuda:1" }), gb.ones(5, 2, { device = "cuda:1" }))
      gb.cuda.synchronize(0)
      gb.cuda.synchronize(1)
    end)
    matches(why, "embedding: index 9 is out of range")
    gb.cuda.synchronize(1)
  end)
  it("have graphs of their own, which turn down another device's ops", function()
    local double = gb.cuda.graph(function(x) return x * 2 end, { gb.ones(3, { device = "cuda:1" }) })
    for i = 1, 4 do expect(double(gb.full({ 3 }, i + 0.0, { device = "cuda:1" })):sum():item()):to_be(6 * i) end
    local other = gb.ones(3)
    local mixed = gb.cuda.graph(function(x) return x * 2, other + 1 end, { gb.ones(3, { device = "cuda:1" }) })
    mixed(gb.ones(3, { device = "cuda:1" }))
    expect(function() mixed(gb.ones(3, { device = "cuda:1" })) end):to_fail("cuda:0 is asked to work while a graph \z
      of another device is captured")
    local moved = gb.cuda.graph(function(x) return x:to("cuda:0") end, { gb.ones(3, { device = "cuda:1" }) })
    moved(gb.ones(3, { device = "cuda:1" }))
    expect(function() moved(gb.ones(3, { device = "cuda:1" })) end):to_fail("while a graph")
  end)
end)

describe("gb.anomaly", function()
  local index, weight = gb.tensor({ 0, 12 }), gb.ones(5, 2)
  it("makes a fault the error of its op, on its line", function()
    local fine, why = pcall(gb.anomaly, function()
      F.embedding(index, weight)
      gb.ones(1):add(1)
    end)
    expect(fine):to_be(false)
    matches(why, "test_runtime.lua:%d+: embedding: index 12 is out of range 0 .. 4")
    matches(fault_of(function() F.embedding(index, weight) end), "embedding: index 12")
  end)
  it("names the op and the line whose gradient is NaN, on any device", function()
    for _, device in ipairs { "cpu", "cuda" } do
      local x = gb.tensor({ 0.0, 1.0 }, { requires_grad = true, device = device })
      local root
      local fine, why = pcall(gb.anomaly, function()
        root = (x * 0):sqrt() -- the derivative is infinite, and times zero it is no number
        root:sum():backward()
      end)
      expect(fine):to_be(false)
      matches(why, "anomaly: the gradient of mul has NaN for its input 1 %(.*test_runtime.lua:%d+")
    end
  end)
  it("leaves what is right as it is, and ends with its scope", function()
    local x = gb.ones(3, { requires_grad = true })
    do
      local _ <close> = gb.anomaly()
      x:square():sum():backward()
    end
    expect(x.grad):to_be_close({ 2, 2, 2 })
    matches(fault_of(function() F.embedding(index, weight) end), "embedding: index 12")
  end)
  it("turns a capture down", function()
    local double = gb.cuda.graph(function(x) return x * 2 end, { gb.ones(2) })
    double(gb.ones(2))
    expect(function() gb.anomaly(double, gb.ones(2)) end):to_fail("under gb.anomaly")
    expect(double(gb.ones(2)):sum():item()):to_be(4)
  end)
end)

describe("a fault", function()
  it("is not lost to who looks for overflows in between", function()
    local p = nn.Parameter(gb.ones(4))
    local opt, scaler = optim.SGD({ p }, { lr = 0.1 }), amp.GradScaler { init_scale = 2 ^ 30 }
    for _ = 1, 3 do
      opt:zero_grad()
      scaler:scale((p * 1e30):sum()):backward()
      scaler:step(opt)
      scaler:update()
    end
    gb.cuda.synchronize() -- by now every op is looked at
    matches(fault_of(function() F.embedding(gb.tensor({ 9 }), gb.ones(5, 2)) end), "embedding: index 9 is out of range")
  end)
end)

-- The emulated device breaks when the file comes to be: a kernel that was launched before wrote where it may not.
if emulated then describe("a device that an earlier kernel broke", function()
  it("is told as that: by who asks for memory, by who launches, by who opens it", function()
    local name = os.tmpname()
    os.remove(name)
    local text = process("GIBBOUS_CUDA_BROKEN_BY='" .. name .. "'", ([[
      local gb = require "gibbous"
      local x = gb.ones(1 << 20, { device = "cuda" })
      local none = gb.ones(0, 4, 2, { device = "cuda" }):requires_grad_(true)
      local normal, grad = gb.nn.GroupNorm(2, 4):to("cuda")(none), gb.ones(0, 4, 2, { device = "cuda" })
      x:add_(1)
      gb.cuda.synchronize()
      io.open("%s", "w"):close()
      print((select(2, pcall(function() return gb.ones(1 << 26, { device = "cuda" }) end))))
      print(gb.last_error().code)
      print((select(2, pcall(function() x:add_(1) end))))
      print((select(2, pcall(function() normal:backward(grad) end)))) -- without an element it only clears memory
    ]]):format(name))
    local opening = process("GIBBOUS_CUDA_BROKEN_BY='" .. name .. "'", [[
      print((select(2, pcall(function() require "gibbous".ones(1, { device = "cuda" }) end))))
    ]])
    os.remove(name)
    matches(text, "^[^\n]*the device failed before 268435456 bytes were asked for: an illegal memory access")
    expect(text:find("out of memory", 1, true)):to_be(nil)
    matches(text, "\nEDEVICE\n")
    matches(text, "\n[^\n]*add[^\n]*an earlier kernel failed: an illegal memory access [^\n]*gb.anomaly")
    expect(text:find("_kernel: an illegal", 1, true)):to_be(nil)
    matches(text, "group_norm_backward: memory could not be cleared: an illegal memory access")
    matches(opening, "not available: an illegal memory access")
  end)
end) end

describe("a library", function()
  it("is not opened while a graph is captured, and can be afterwards", function()
    local text = process("", [[
      local gb = require "gibbous"
      gb.set_default_device("cuda")
      local calls, x = 0, gb.ones(2, 2)
      local function square(v)
        calls = calls + 1
        return calls == 1 and v * v or v:matmul(v)
      end
      local step = gb.cuda.graph(square, { x })
      step(x)
      print((select(2, pcall(step, x))))
      print(gb.last_error().code)
      print(x:matmul(x):sum():item())
      for i = 1, 3 do print(step(x * i):sum():item()) end
    ]])
    matches(text, "^[^\n]*: matmul: cuBLASLt is first used while a graph is captured[^\n]*; run this op once before")
    matches(text, "\nESTATE\n8.0\n8.0\n32.0\n72.0\n$")
  end)
end)

describe("memory", function()
  it("of a graph is not given away while it lives", function()
    local step = gb.cuda.graph(function(x) return ((x * 2):exp() + 1):log():sum() end, { gb.zeros(1 << 16) })
    local want = step(gb.zeros(1 << 16)):item()
    step(gb.zeros(1 << 16))
    for _ = 1, 3 do
      gb.cuda.empty_cache()
      local other = gb.full({ 1 << 18 }, -1.0)
      expect(step(gb.zeros(1 << 16)):item()):to_be(want)
      expect(other:sum():item()):to_be(-(1 << 18))
    end
  end)
  it("has a summary of everything", function()
    local kept = gb.ones(1 << 20)
    local text = gb.cuda.memory_summary()
    for _, row in ipairs { "MiB on cuda:0 +now +peak", "parameters", "gradients", "optimizer", "weight_copies", "saved",
      "other", "scratch", "in tensors",
                           "reserved", "of it cached", "of it in graphs", "uploads pass through", "free on the device",
                             "on the device",
                           "%d+ allocations, %d+ of them from the system" } do
      matches(text, row)
    end
    local now = tonumber(text:match("in tensors +([%d.]+)"))
    expect(math.abs(now - gb.cuda.memory_allocated() / 2 ^ 20) < 0.01):to_be(true) -- two digits are shown
    expect(kept:sum():item()):to_be(1 << 20)
  end)
end)

-- The emulated device has a tool that writes them down.
if emulated then describe("ranges", function()
  it("lie within each other: phases, modules, ops", function()
    local name = os.tmpname()
    local text = process("GIBBOUS_CUDA_RANGE_FILE='" .. name .. "'", [[
      local gb = require "gibbous"
      gb.set_default_device("cuda")
      local model = gb.nn.Sequential(gb.nn.Linear(2, 3), gb.nn.ReLU()):to("cuda")
      local opt = gb.optim.SGD(model:parameters(), { lr = 0.1 })
      local x = gb.ones(4, 2)
      io.open("]] .. name .. [[", "w"):close()
      local y = model(x)
      pcall(function() model(gb.ones(4, 5)) end)
      y:sum():backward()
      opt:step()
    ]])
    expect(text):to_be("")
    local seen = {}
    for line in io.lines(name) do seen[#seen + 1] = line end
    os.remove(name)
    local all = table.concat(seen, "\n")
    matches(all, "^forward\n  Sequential\n    Linear\n      linear\n    ReLU\n      relu\n")
    matches(all, "\nforward\n  Sequential\n    Linear\n      linear\nsum\n") -- also where an op failed
    matches(all, "\nbackward\n[%l_\n ]*\n  relu_backward\n  linear_backward\n")
    matches(all, "\nstep\n  optim_step$")
  end)
end) end

-- Orders that are legal are tried: the same script under other seeds.
if emulated and not os.getenv("GIBBOUS_CUDA_LATE") then
  describe("whatever runs late", function()
    for _, seed in ipairs { "0", "2", "5", "11" } do
      it("seed " .. seed, function()
        local i = 0
        while arg[i - 1] do i = i - 1 end
        expect((os.execute(("GIBBOUS_CUDA_LATE=%s '%s' '%s' >/dev/null"):format(seed, arg[i], arg[0])))):to_be(true)
      end)
    end
  end)
end

gb.test.finish()

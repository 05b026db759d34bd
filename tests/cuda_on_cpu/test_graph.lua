-- test_graph.lua - gb.cuda.graph: a captured training step gives the bits of the same step run as it is, and says what
-- it cannot do.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, F, amp, optim = gb.nn, gb.nn.functional, gb.amp, gb.optim
gb.set_default_device("cuda")

-- A model and what trains it: float16 with a scale that overflows at first and grows again, clipping, AdamW, dropout, a
-- schedule.
local function setup(options)
  gb.manual_seed(5)
  local run = { model = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(32),
    options.mlp and nn.MLP(32, 64) or nn.Identity(),
                                     nn.Linear(32, 4)) }
  run.opt = optim[options.kind or "AdamW"](run.model:parameters(),
    { lr = 0.02, weight_decay = 0.01, momentum = options.momentum })
  run.scaler = amp.GradScaler { init_scale = 2 ^ 22, growth_interval = 3 }
  run.schedule = optim.lr.Cosine(run.opt, { steps = 30, warmup = 3 })
  run.step = function(x, y)
    run.opt:zero_grad()
    local loss = amp.autocast({ dtype = options.dtype or "float16" },
      function() return F.cross_entropy(run.model(x), y) end)
    run.scaler:scale(loss):backward { retain_graph = options.twice }
    if options.twice then run.scaler:scale(loss):backward() end
    if options.inside then run.norm = run.scaler:step(run.opt, { clip = 0.5 })
    else
      run.scaler:unscale_(run.opt)
      run.norm = nn.utils.clip_grad_norm_(run.model:parameters(), 0.5)
      run.scaler:step(run.opt)
    end
    run.scaler:update()
    return loss
  end
  return run
end

local function batch(i)
  local x = gb.arange(8 * 6, { dtype = "float32", device = "cpu" }):mul(0.37 * (i + 1)):sin():reshape(8, 6)
  return x, gb.arange(8, { device = "cpu" }):add(i):remainder(4)
end

-- Steps of a run, through the graph or not; the losses, and every parameter and number at the end.
local function train(options, captured, steps)
  local run = setup(options)
  local x, y = batch(0)
  local step = captured and gb.cuda.graph(run.step, { x, y }) or
    function(a, b) return run.step(a:to("cuda"), b:to("cuda")) end
  local losses = {}
  for i = 1, steps do
    losses[i] = step(batch(i)):item()
    run.schedule:step()
    if options.between then options.between(run, i) end
  end
  return run, losses
end

local function compare(options, steps)
  local a, eager = train(options, false, steps)
  local b, graph = train(options, true, steps)
  for i = 1, steps do expect(graph[i]):to_be(eager[i]) end
  for name, p in a.model:named_parameters() do
    for other, q in b.model:named_parameters() do
      if name == other then expect(q):to_equal_bits(p) end
    end
  end
  local want, got = a.scaler:stats(), b.scaler:stats()
  for _, key in ipairs { "scale", "steps", "skipped", "skipped_in_a_row" } do expect(got[key]):to_be(want[key]) end
  return want, b
end

describe("a captured step gives the same bits", function()
  it("in float16 with dynamic scaling, clipping, AdamW, dropout and a schedule", function()
    local stats = compare({}, 14)
    expect(stats.skipped > 0):to_be(true) -- skips are taken within the graph
    expect(stats.steps > 2):to_be(true)
  end)
  it("and so does one that clips within the step", function()
    local stats, inside = compare({ inside = true }, 14)
    expect(stats.skipped > 0):to_be(true)
    local _, before = compare({}, 14)
    for name, p in inside.model:named_parameters() do
      for other, q in before.model:named_parameters() do
        if name == other then expect(p):to_equal_bits(q) end
      end
    end
    expect(inside.norm:item()):to_be(before.norm:item())
    compare({ inside = true, kind = "SGD", momentum = 0.9, dtype = "bfloat16" }, 8)
  end)
  it("in float16, by Lion, whose step may be skipped", function() compare({ kind = "Lion" }, 8) end)
  it("in float16, by NAdam, whose numbers change with the count of steps",
    function() compare({ kind = "NAdam" }, 8) end)
  it("in float16, by LAMB, whose step measures norms first", function()
    compare({ kind = "LAMB" }, 8)
    compare({ kind = "LAMB", inside = true }, 8)
  end)
  for _, kind in ipairs { "Muon", "Adafactor" } do it("by " .. kind .. ", whose ops are captured too", function()
    local function run(captured)
      gb.manual_seed(4)
      local p = nn.Parameter(gb.randn(6, 4):to("cuda"))
      local opt = optim[kind]({ p }, { lr = 0.1 })
      local function once(x)
        opt:zero_grad()
        local loss = x:matmul(p):sin():sum()
        loss:backward()
        opt:step()
        return loss:detach()
      end
      local inputs = {}
      for i = 1, 5 do inputs[i] = gb.randn(3, 6):to("cuda") end
      local step = captured and gb.cuda.graph(once, { inputs[1] }) or once
      for i = 1, 5 do
        opt.param_groups[1].lr = 0.1 / i
        step(inputs[i])
      end
      return p
    end
    expect(run(true):detach()):to_equal_bits(run(false):detach())
  end) end
  it("in bfloat16, by SGD with momentum", function() compare({ kind = "SGD", momentum = 0.9, dtype = "bfloat16" },
    8) end)
  it("with two backward calls, whose products add to the first one's gradients", function()
    compare({ mlp = true, twice = true }, 14)
    compare({ mlp = true, twice = true, dtype = "bfloat16" }, 6)
  end)
  it("with ops in between, which draw random numbers and allocate", function()
    compare({ between = function() for _ = 1, 3 do gb.randn(64, 64):relu():sum() end end }, 8)
  end)
  it("with weights changed by hand between two steps", function()
    compare({ between = function(run, i) if i == 5 then
      gb.no_grad(function() run.model[1].weight:mul_(0.5) end) end end }, 9)
  end)
  it("with weights that ops of the step change, whose copies of 16 bits are made again", function()
    local function run(captured)
      gb.manual_seed(3)
      local p, seen = nn.Parameter(gb.randn(6, 4):to("cuda")), {}
      local opt = optim.SGD({ p }, { lr = 0.1 })
      local function once(x)
        opt:zero_grad()
        local loss = amp.autocast("bfloat16", function() return x:matmul(p):float():sin():sum() end)
        loss:backward()
        opt:step()
        gb.no_grad(function() p:clamp_(-0.5, 0.5) end)
        return loss:detach()
      end
      local inputs = {}
      for i = 1, 4 do inputs[i] = gb.randn(3, 6):to("cuda") end
      local step = captured and gb.cuda.graph(once, { inputs[1] }) or once
      for i = 1, 4 do
        step(inputs[i])
        seen[i] = amp.autocast("bfloat16", function() return inputs[1]:matmul(p) end):detach()
      end
      return gb.stack(seen)
    end
    expect(run(true)):to_equal_bits(run(false))
  end)
  it("with an evaluation in between", function()
    local seen = { {}, {} }
    for k = 1, 2 do
      train({ between = function(run)
        run.model:eval()
        seen[k][#seen[k] + 1] = gb.no_grad(function() return amp.autocast({ dtype = "float16" },
          function() return run.model(gb.ones(1, 6)):sum():item() end) end)
        run.model:train()
      end }, k == 2, 7)
    end
    for i = 1, 7 do expect(seen[2][i]):to_be(seen[1][i]) end
  end)
  it("after gb.manual_seed", function()
    local drop = gb.cuda.graph(function(x) return F.dropout(x, 0.5, true) end, { gb.ones(200) })
    local results = {}
    for i = 1, 4 do
      gb.manual_seed(77)
      results[i] = drop(gb.ones(200)):clone()
    end
    for i = 2, 4 do expect(results[i]):to_equal_bits(results[1]) end
    expect(drop(gb.ones(200)):eq(results[1]):all():item()):to_be(false)
  end)
end)

describe("a norm that unscale_ measured", function()
  -- A parameter of 3 elements, whose gradient is slope; and its optimizer and scaler.
  local function setup_norm()
    local p = nn.Parameter(gb.ones(3))
    local opt, scaler = optim.SGD({ p }, { lr = 0 }), amp.GradScaler { init_scale = 4 }
    local function backward(x)
      opt:zero_grad()
      scaler:scale((p * x):sum()):backward()
    end
    return p, opt, scaler, backward
  end
  local function finish(opt, scaler)
    scaler:step(opt)
    scaler:update()
  end
  it("within a graph is the one of each replay", function()
    local p, opt, scaler, backward = setup_norm()
    local step = gb.cuda.graph(function(x)
      backward(x)
      scaler:unscale_(opt)
      local norm = nn.utils.clip_grad_norm_({ p }, 1e9)
      finish(opt, scaler)
      return norm
    end, { gb.ones(3) })
    for i = 1, 5 do expect(step(gb.full({ 3 }, 2.0 * i)):item()):to_be_near(2 * i * math.sqrt(3), 1e-6) end
    expect(nn.utils.clip_grad_norm_({ p }, 1e9):item()):to_be_near(10 * math.sqrt(3), 1e-6)
  end)
  it("before a graph is not the one within it", function()
    local p, opt, scaler, backward = setup_norm()
    backward(gb.full({ 3 }, 7.0))
    scaler:unscale_(opt)
    local norm = gb.cuda.graph(function(x)
      p.grad:copy_(x)
      return nn.utils.clip_grad_norm_({ p }, 1e9)
    end, { gb.ones(3) })
    local alone = gb.cuda.graph(function() return nn.utils.clip_grad_norm_({ p }, 1e9) end, {})
    for i = 1, 5 do
      expect(norm(gb.full({ 3 }, 2.0 * i)):item()):to_be_near(2 * i * math.sqrt(3), 1e-6)
      expect(alone():item()):to_be_near(2 * i * math.sqrt(3), 1e-6)
    end
  end)
  it("is another one after a replay, which writes without being seen", function()
    local p, opt, scaler, backward = setup_norm()
    local fill = gb.cuda.graph(function(x) p.grad:copy_(x) end, { gb.ones(3) })
    backward(gb.full({ 3 }, 7.0))
    for _ = 1, 2 do fill(gb.ones(3)) end
    backward(gb.full({ 3 }, 7.0))
    scaler:unscale_(opt)
    fill(gb.full({ 3 }, 2.0))
    expect(nn.utils.clip_grad_norm_({ p }, 1e9):item()):to_be_near(2 * math.sqrt(3), 1e-6)
  end)
end)

describe("a graph", function()
  it("gives the same tensors with new values", function()
    local double = gb.cuda.graph(function(x) return x * 2, "text" end, { gb.ones(3) })
    double(gb.ones(3))
    local a = double(gb.full({ 3 }, 2.0))
    expect(a):to_be_close({ 4, 4, 4 })
    local b, text = double(gb.full({ 3 }, 5.0))
    expect(b):to_be(a)
    expect(a):to_be_close({ 10, 10, 10 })
    expect(text):to_be("text")
  end)
  it("keeps what it was captured with", function()
    local w = gb.full({ 1000 }, 3.0)
    local scale = gb.cuda.graph(function(x) return x * w end, { gb.ones(1000) })
    scale(gb.ones(1000))
    scale(gb.ones(1000))
    w = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    local other = gb.full({ 1000 }, 9.0)
    expect(scale(gb.full({ 1000 }, 2.0)):sum():item()):to_be(6000)
    expect(other:sum():item()):to_be(9000)
  end)
  it("gives its memory back when it is collected", function()
    collectgarbage()
    collectgarbage()
    local before = gb.cuda.memory_allocated()
    do
      local step = gb.cuda.graph(function(x) return (x * 2):exp() end, { gb.ones(1 << 16) })
      for _ = 1, 3 do step(gb.ones(1 << 16)) end
    end
    collectgarbage()
    collectgarbage()
    expect(gb.cuda.memory_allocated()):to_be(before)
  end)
  it("says what it cannot do", function()
    local function third(step, ...)
      local fn = gb.cuda.graph(step, { gb.ones(2) })
      fn(gb.ones(2))
      return fn(...)
    end
    expect(function() third(function(x) return x:sum():item() end, gb.ones(2)) end):to_fail("while a graph is captured")
    expect(function() third(function(x) return x + gb.tensor({ 1.0, 2.0 }) end,
      gb.ones(2)) end):to_fail("while a graph is captured")
    expect(function() third(function(x) return x end, gb.ones(3)) end):to_fail("float32 3, its example was float32 2")
    expect(function() third(function(x) return x end, gb.ones(2), gb.ones(2)) end):to_fail("takes 1 inputs")
    expect(function() third(function() error("of the recipe", 0) end, gb.ones(2)) end):to_fail("of the recipe")
    expect(function() gb.cuda.graph(5, {}) end):to_fail("must be a function")
    expect(function() gb.cuda.graph(print, gb.ones(2)) end):to_fail("list of tensors")
    expect((gb.ones(2) + 1):tolist()[1]):to_be(2) -- and everything runs again
  end)
  it("and an audit keep out of each other's way", function()
    local layer, quiet = nn.Linear(4, 4), { print = false }
    local step = gb.cuda.graph(function(x) return layer(x) end, { gb.ones(2, 4) })
    local function audited() amp.audit(layer, function() step(gb.ones(2, 4)) end, quiet) end
    audited()                                          -- the first call runs the step as it is,
    expect(audited):to_fail("an audit runs, which looks at values")
    step(gb.ones(2, 4))                                -- the second one captures it,
    expect(audited):to_fail("a replay runs no ops")    -- and the others replay it
    local inside = gb.cuda.graph(function(x) amp.audit(layer, x, quiet) return x * 2 end, { gb.ones(2, 4) })
    inside(gb.ones(2, 4))
    expect(function() inside(gb.ones(2, 4)) end):to_fail("a graph is being captured")
    expect(#amp.audit(layer, gb.ones(2, 4), quiet).rows):to_be(1)
  end)
  it("has no linear algebra, which reads whether matrices are sound", function()
    local step = gb.cuda.graph(function(x) return gb.linalg.inv(x) end, { gb.eye(3) })
    if not pcall(step, gb.eye(3)) then return end         -- without LAPACK
    expect(function() step(gb.eye(3)) end):to_fail("while a graph is captured")
    expect(gb.linalg.inv(gb.eye(3) * 2):tolist()[1][1]):to_be(0.5)
  end)
  it("follows the learning rate, and turns down another momentum", function()
    local p = nn.Parameter(gb.zeros(4))
    local opt = optim.SGD({ p }, { lr = 1, momentum = 0.5 })
    local step = gb.cuda.graph(function(x) opt:zero_grad(); (p * x):sum():backward(); opt:step() end, { gb.ones(4) })
    for _ = 1, 2 do step(gb.ones(4)) end
    opt.param_groups[1].lr = 0
    local before = p:clone()
    step(gb.ones(4))
    expect(p:detach()):to_be_close(before:detach(), 0)
    opt.param_groups[1].momentum = 0.9
    expect(function() step(gb.ones(4)) end):to_fail("make a new graph")
  end)
end)

gb.test.finish()

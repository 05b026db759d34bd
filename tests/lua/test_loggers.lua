-- test_loggers.lua - gb.Logger: event files by their framing, checksums and fields, which are read here by hand; CSV
-- and JSONL; what is left by a run that was killed. With GIBBOUS_PYTHON, a Python that has the package tensorboard,
-- TensorBoard's own reader reads the event file too.

local gb = require "gibbous"
gb.set_default_device("cpu")
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local program = gb.test.program()

local folder = os.tmpname()
os.remove(folder)
assert(os.execute("mkdir " .. folder))

local function read(path)
  local file <close> = assert(io.open(path, "rb"))
  return file:read("a")
end

local function write(path, text)
  local file <close> = assert(io.open(path, "wb"))
  assert(file:write(text))
end

local function run_of(command)
  local pipe <close> = assert(io.popen(command))
  return pipe:read("a")
end

-- {==== an event file, read by hand ====

local crc_table = {}
for i = 0, 255 do
  local c = i
  for _ = 1, 8 do c = c >> 1 ~ (c & 1 == 1 and 0x82f63b78 or 0) end
  crc_table[i] = c
end

local function masked(text)
  local crc = 0xffffffff
  for i = 1, #text do crc = crc_table[(crc ~ text:byte(i)) & 255] ~ crc >> 8 end
  crc = ~crc & 0xffffffff
  return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff
end

-- The fields of a message: { [number] = { values } }.
local function fields_of(text)
  local fields, at = {}, 1
  local function varint()
    local value, shift = 0, 0
    repeat
      local byte = text:byte(at)
      value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
    until byte < 128
    return value
  end
  while at <= #text do
    local key = varint()
    local how = key & 7
    local value
    if how == 0 then value = varint()
    elseif how == 1 then value, at = string.unpack("<d", text, at)
    elseif how == 5 then value, at = string.unpack("<f", text, at)
    else
      local length = varint()
      value, at = text:sub(at, at + length - 1), at + length
    end
    fields[key >> 3] = fields[key >> 3] or {}
    table.insert(fields[key >> 3], value)
  end
  return fields
end

-- The events of a file, each checked.
local function events_of(path)
  local text, at, events = read(path), 1, {}
  while at <= #text do
    local length = string.unpack("<I8", text, at)
    expect(string.unpack("<I4", text, at + 8)):to_be(masked(text:sub(at, at + 7)))
    local data = text:sub(at + 12, at + 11 + length)
    expect(#data):to_be(length)
    expect(string.unpack("<I4", text, at + 12 + length)):to_be(masked(data))
    events[#events + 1] = fields_of(data)
    at = at + 16 + length
  end
  expect(at):to_be(#text + 1)
  return events
end

-- The values of a file: { tag =, step =, and the fields }.
local function values_of(path)
  local values = {}
  for _, event in ipairs(events_of(path)) do
    expect(event[1][1] > 1e9 and event[1][1] < 1e11):to_be(true) -- a time, and no NaN
    for _, summary in ipairs(event[5] or {}) do
      for _, value in ipairs(fields_of(summary)[1]) do
        local fields = fields_of(value)
        fields.tag, fields.step = fields[1][1], event[2][1]
        values[#values + 1] = fields
      end
    end
  end
  return values
end

local function doubles(text)
  local list = {}
  for at = 1, #text, 8 do list[#list + 1] = (string.unpack("<d", text, at)) end
  return list
end

local function path_in(run) return (run_of("ls " .. run):gsub("^", run .. "/"):gsub("\n$", "")) end

-- ====}

describe("an event file", function()
  local run = folder .. "/deep/run"
  local log = gb.Logger.tensorboard(run)
  local path = path_in(run)
  it("has the name and the first record that readers ask for", function()
    expect(path:match("/events%.out%.tfevents%.%d%d%d%d%d%d%d%d%d%d%.[^/]+%.%d+%.0$") ~= nil):to_be(true)
    local first = events_of(path)
    expect(#first):to_be(1)
    expect(first[1][3][1]):to_be("brain.Event:2")
  end)
  it("holds numbers as soon as log returns, in the order of their names", function()
    log:log({ loss = 0.5, ["a/b"] = gb.tensor(2.0), count = 3, bad = 0 / 0, yes = true }, 7)
    local values = values_of(path)
    expect(#values):to_be(5)
    expect(values[1].tag):to_be("a/b")
    expect(values[1].step):to_be(7)
    expect(values[1][2][1]):to_be(2.0)
    expect(values[2][2][1] ~= values[2][2][1]):to_be(true)
    expect(values[4].tag):to_be("loss")
    expect(values[4][2][1]):to_be(0.5)
    expect(values[5][2][1]):to_be(1.0)
  end)
  it("holds histograms whose buckets hold the values", function()
    log:histogram("w", gb.tensor({ -2.0, 0.0, 1.0, 1.0, 3.0, 0 / 0, math.huge }), 8)
    local values = values_of(path)
    local h = fields_of(values[#values][5][1])
    expect(h[1][1]):to_be(-2.0)
    expect(h[2][1]):to_be(3.0)
    expect(h[3][1]):to_be(5.0) -- what is not finite is left out
    expect(h[4][1]):to_be(3.0)
    expect(h[5][1]):to_be(15.0)
    local limits, buckets = doubles(h[6][1]), doubles(h[7][1])
    expect(#limits):to_be(#buckets)
    expect(buckets[1]):to_be(0.0) -- its right edge is where the first one begins
    local function inside(x)
      for i = 2, #limits do
        if x >= limits[i - 1] and x < limits[i] then return buckets[i] end
      end
    end
    expect(inside(-2)):to_be(1.0)
    expect(inside(0)):to_be(1.0)
    expect(inside(1)):to_be(2.0)
    expect(inside(3)):to_be(1.0)
    log:histogram("none", gb.zeros(0), 8)
    log:histogram("whole", gb.tensor({ 1, 2, 3 }), 8)
  end)
  it("holds exponents of parameters and gradients", function()
    local model = gb.nn.Linear(2, 1, { bias = false })
    gb.no_grad(function() model.weight:copy_(gb.tensor({ { 1.0, 0.25 } })) end)
    model(gb.ones(1, 2)):sum():backward()
    log:exponents(model, 9)
    local values = values_of(path)
    local of_weight, of_grad = values[#values - 1], values[#values]
    expect(of_weight.tag):to_be("exponents/weight")
    expect(of_grad.tag):to_be("exponents/weight.grad")
    local h = fields_of(of_weight[5][1])
    expect(table.concat(doubles(h[6][1]), " ")):to_be("-2.5 -1.5 -0.5 0.5")
    expect(table.concat(doubles(h[7][1]), " ")):to_be("0.0 1.0 0.0 1.0")
    log:exponents({ zero = gb.zeros(3) }, 9)
  end)
  it("holds texts and hyperparameters as the plugins read them", function()
    log:text("note", "# Title", 1)
    local values = values_of(path)
    local text = values[#values]
    expect(text.tag):to_be("note/text_summary")
    expect(fields_of(fields_of(text[9][1])[1][1])[1][1]):to_be("text")
    local tensor = fields_of(text[8][1])
    expect(tensor[1][1]):to_be(7)
    expect(tensor[8][1]):to_be("# Title")
    log:hparams({ lr = 0.5, name = "adam", amsgrad = true }, { best = 0.25 })
    values = values_of(path)
    local n = #values
    expect(values[n].tag):to_be("best")
    expect(values[n - 1].tag):to_be("_hparams_/session_end_info")
    expect(values[n - 2].tag):to_be("_hparams_/session_start_info")
    expect(values[n - 3].tag):to_be("_hparams_/experiment")
    local content = fields_of(fields_of(values[n - 2][9][1])[1][1])
    expect(content[1][1]):to_be("hparams")
    local params = fields_of(fields_of(content[2][1])[3][1])[1]
    local lr = fields_of(params[2])
    expect(lr[1][1]):to_be("lr")
    expect(fields_of(lr[2][1])[2][1]):to_be(0.5)
    log:hparams({ lr = 0.5 }, { "loss" })
  end)
  it("holds pictures", function()
    local ok, why = pcall(log.image, log, "x", gb.rand(3, 4, 5), 2)
    if not ok then
      expect(why:find("PNG is not built in", 1, true) ~= nil):to_be(true)
      return print("skipped: there is no libpng")
    end
    local values = values_of(path)
    local image = fields_of(values[#values][4][1])
    expect(image[1][1]):to_be(4)
    expect(image[2][1]):to_be(5)
    expect(image[3][1]):to_be(3)
    expect(image[4][1]:sub(1, 8)):to_be("\137PNG\r\n\26\n")
  end)
  it("is read by TensorBoard", function()
    local python = os.getenv("GIBBOUS_PYTHON")
    if not python then return print("skipped: GIBBOUS_PYTHON names no Python with the package tensorboard") end
    log:flush()
    local told = run_of(python .. " tests/watch/read_events.py " .. run)
    if told:find("^skipped") then return print(told) end
    for _, line in ipairs { "scalar loss 7:0.5", "histogram w 8 n 5 sum 3 min -2 max 3 buckets 5", "image x 2 5x4 PNG",
      "text note/text_summary 1 # Title", "hparams amsgrad=True lr=0.5 name=adam", "metrics best", "end 1",
      "histogram exponents/weight 9 n 2 sum -2 min -2 max 0 buckets 2" } do
      if not told:find(line, 1, true) then error(("'%s' is not in:\n%s"):format(line, told)) end
    end
  end)
  it("is closed once, and says so afterwards", function()
    log:close()
    log:close()
    expect(function() log:log({ a = 1 }, 1) end):to_fail("this logger was closed")
  end)
  it("is a new one for each logger of a folder", function()
    local again <close> = gb.Logger.tensorboard(run)
    expect(select(2, run_of("ls " .. run):gsub("\n", "")) >= 2):to_be(true)
    again:flush()
  end)
end)

describe("a CSV file", function()
  local path = folder .. "/log.csv"
  local function rows() return (read(path):gsub("\n(%d+),%d+", "\n%1,T")) end
  it("gets columns as names come, and stays whole", function()
    local log = gb.Logger.csv(path)
    log:log({ loss = 1.5 }, 1)
    expect(rows()):to_be("step,wall_time,loss\n1,T,1.5\n")
    log:log({ loss = 0.1, ['a,"b"'] = 3 }, 2)
    log:log({ loss = 0 / 0 }, 3)
    expect(rows()):to_be('step,wall_time,loss,"a,""b"""\n1,T,1.5,\n2,T,0.1,3\n3,T,nan,\n')
    log:close()
  end)
  it("is gone on with, without the half line of a run that was killed", function()
    write(path, read(path) .. "4,17")
    local log <close> = gb.Logger.csv(path)
    log:log({ ['a,"b"'] = -math.huge }, 5)
    expect(rows()):to_be('step,wall_time,loss,"a,""b"""\n1,T,1.5,\n2,T,0.1,3\n3,T,nan,\n5,T,,-inf\n')
  end)
  it("keeps its bits: numbers come back as they were", function()
    local log <close> = gb.Logger.csv(folder .. "/bits.csv")
    log:log({ x = 1 / 3, y = 0.1, n = 1 << 62 }, 1)
    local n, x, y = read(folder .. "/bits.csv"):match("\n%d+,%d+,([^,]+),([^,]+),([^\n]+)\n")
    expect(math.tointeger(n)):to_be(1 << 62)
    expect(tonumber(x)):to_be(1 / 3)
    expect(tonumber(y)):to_be(0.1)
  end)
  it("of somebody else is left alone", function()
    write(folder .. "/other.csv", "a,b\n1,2\n")
    expect(function() gb.Logger.csv(folder .. "/other.csv") end):to_fail("does not begin with the columns step,")
    write(folder .. "/odd.csv", 'step,wall_time,"a\n')
    expect(function() gb.Logger.csv(folder .. "/odd.csv") end):to_fail("a quote without an end")
    expect(read(folder .. "/other.csv")):to_be("a,b\n1,2\n")
    write(folder .. "/text", "no table")
    expect(function() gb.Logger.csv(folder .. "/text") end):to_fail("choose another path")
    expect(read(folder .. "/text")):to_be("no table")
  end)
end)

describe("a JSONL file", function()
  local path = folder .. "/log.jsonl"
  it("has an object per line, and is gone on with", function()
    local log = gb.Logger.jsonl(path)
    log:log({ loss = 0.25, n = 3, ['q"'] = -math.huge }, 1)
    log:close()
    write(path, read(path) .. '{"step":2,"lo')
    local again <close> = gb.Logger.jsonl(path)
    again:log({ loss = 0.125 }, 2)
    local values = {}
    for line in io.lines(path) do values[#values + 1] = gb.io.json_decode(line) end
    expect(#values):to_be(2)
    expect(values[1].loss):to_be(0.25)
    expect(values[1].n):to_be(3)
    expect(values[1]['q"']):to_be("-inf")
    expect(values[2].step):to_be(2)
    expect(values[2].loss):to_be(0.125)
  end)
  it("of somebody else is left alone", function()
    for _, text in ipairs { "no object", "no object\n", '{\n "lr": 0.1,\n "note": "keep"}', '{"a": 1, "b', "[1]\n",
      "\n\n", "{} {}\n", '{"a": 1}x\n{}\n' } do
      write(folder .. "/text", text)
      expect(function() gb.Logger.jsonl(folder .. "/text") end):to_fail("first line")
      expect(read(folder .. "/text")):to_be(text)
    end
  end)
  it("loses nothing that is whole, and of its first line what was cut", function()
    local function kept(text)
      write(folder .. "/kept", text)
      gb.Logger.jsonl(folder .. "/kept"):close()
      return read(folder .. "/kept")
    end
    expect(kept('{"a": 1}')):to_be('{"a": 1}\n')
    expect(kept('{"a": 1}\n{"b": 2}')):to_be('{"a": 1}\n{"b": 2}\n')
    expect(kept('{"a": 1}\r\n{"b": 2')):to_be('{"a": 1}\r\n')
    expect(kept('{"step":1,"wall')):to_be("")
    expect(kept('{"st')):to_be("")
  end)
end)

describe("wrong calls", function()
  local log <close> = gb.Logger.jsonl(folder .. "/wrong.jsonl")
  it("name the value", function()
    expect(function() log:log({ a = {} }, 1) end):to_fail("'a' is a table")
    expect(function() log:log({ 1 }, 1) end):to_fail("by name")
    expect(function() log:log({ a = gb.ones(2) }, 1) end):to_fail("a tensor of 2 elements")
    expect(function() log:log({ a = 1 }) end):to_fail("'step' is missing")
    expect(function() log:log({ step = 1 }, 1) end):to_fail("'step' stands there by itself")
    expect(function() log:log({ ["\255"] = 1 }, 1) end):to_fail("UTF-8")
    expect(function() log:histogram("a", gb.ones(2), 1) end):to_fail("use gb.Logger.tensorboard")
    expect(function() log:text("a", "b", 1) end):to_fail("use gb.Logger.tensorboard")
    expect(function() gb.Logger.csv(folder) end):to_fail("cannot open")
    assert(os.execute("mkfifo " .. folder .. "/pipe"))
    expect(function() gb.Logger.jsonl(folder .. "/pipe") end):to_fail("cannot open")
    expect(function() gb.Logger.csv("/dev/null") end):to_fail("no regular file")
    expect(function() gb.Logger.tensorboard(folder .. "/wrong.jsonl/x") end):to_fail("cannot make the folder")
    local csv <close> = gb.Logger.csv(folder .. "/wrong.csv")
    expect(function() csv:log({ ["a\nb"] = 1 }, 1) end):to_fail("a line break")
    local board <close> = gb.Logger.tensorboard(folder .. "/wrong")
    expect(function() board:log({ ["a\0b"] = 1 }, 1) end):to_fail("NUL")
    expect(function() board:text("a", "\255", 1) end):to_fail("UTF-8")
    expect(function() board:image("a", gb.ones(2, 4, 4), 1) end):to_fail("[1, 3 or 4, height, width]")
    expect(function() board:image("a", gb.ones(4, 4):long(), 1) end):to_fail("this tensor is int64")
    expect(function() board:hparams({ a = {} }) end):to_fail("'a' is a table")
    expect(function() board:hparams({ a = 1 }, { 1 }) end):to_fail("a list of tags")
  end)
end)

describe("a run that is killed", function()
  it("leaves all that it logged, in files that are whole", function()
    local script = folder .. "/killed.lua"
    write(script, ([[
      local gb = require "gibbous"
      local logs = { gb.Logger.tensorboard("%s/killed"), gb.Logger.csv("%s/killed.csv"),
                     gb.Logger.jsonl("%s/killed.jsonl") }
      for step = 1, 50 do
        for _, log in ipairs(logs) do log:log({ loss = 1 / step }, step) end
      end
      os.execute("kill -9 $PPID")
      gb.clock()
    ]]):format(folder, folder, folder))
    os.execute(program .. " " .. script .. " 2>/dev/null")
    local values = values_of(path_in(folder .. "/killed"))
    expect(#values):to_be(50)
    expect(values[50].step):to_be(50)
    expect(select(2, read(folder .. "/killed.csv"):gsub("\n", ""))):to_be(51)
    expect(select(2, read(folder .. "/killed.jsonl"):gsub("}\n", ""))):to_be(50)
  end)
end)

describe("save_image", function()
  it("writes a picture, or says that there is no libpng", function()
    local path = folder .. "/x.png"
    local ok, why = pcall(gb.io.save_image, path, gb.rand(3, 4, 5))
    if not ok then return expect(why:find("PNG is not built in", 1, true) ~= nil):to_be(true) end
    expect(read(path):sub(1, 8)):to_be("\137PNG\r\n\26\n")
    expect(string.unpack(">I4I4BB", read(path), 17)):to_be(5)
    gb.io.save_image(path, gb.tensor({ { -1.0, 0.5, 2.0, 0 / 0 } }))
    expect((string.unpack(">I4I4BB", read(path), 17))):to_be(4)
    expect(select(4, string.unpack(">I4I4BB", read(path), 17))):to_be(0) -- gray
    gb.io.save_image(path, gb.ones(4, 2, 2):to("uint8"))
    expect(select(4, string.unpack(">I4I4BB", read(path), 17))):to_be(6) -- RGBA
    gb.io.save_image(path, gb.rand(8, 6):t())
    expect(function() gb.io.save_image(path, gb.zeros(3, 0, 4)) end):to_fail("with pixels")
    expect(function() gb.io.save_image(path, gb.zeros(4)) end):to_fail("a picture is")
  end)
end)

os.execute("rm -r " .. folder)



gb.test.finish()

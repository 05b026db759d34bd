-- dist.lua - values of Lua between the processes of a job, and what one of them does for all. bindings/dist.c has the
-- collectives of tensors, which these are made of. A process that is alone is a job of one.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, copy = native.define, native.copy
local format, pack, unpack, rep, sub = string.format, string.pack, string.unpack, string.rep, string.sub
local concat, is_tensor, math_type = table.concat, gb.is_tensor, math.type
local dist = gb.dist

local MOST_DEPTH = 50 -- of tables in tables: what holds itself is deeper

-- {==== a value as bytes, and back ====

local write

-- By type: what is appended to a list of strings.
local writers = {
  ["nil"] = function(out) out[#out + 1] = "z" end,
  boolean = function(out, value) out[#out + 1] = value and "t" or "f" end,
  number = function(out, value)
    out[#out + 1] = math_type(value) == "integer" and pack("<c1i8", "i", value) or pack("<c1d", "d", value)
  end,
  string = function(out, value) out[#out + 1] = pack("<c1s8", "s", value) end,
  userdata = function(out, value, _, who)
    if not is_tensor(value) then fail(format("%s: an object of the library has no bytes; send its state_dict()",
      who)) end
    local shape = value.shape
    out[#out + 1] = pack("<c1s1I1", "x", value.dtype, #shape) .. pack("<" .. rep("i8", #shape), table.unpack(shape))
    out[#out + 1] = pack("<s8", gb.to_bytes(value:detach():cpu()))
  end,
  table = function(out, value, depth, who)
    if depth > MOST_DEPTH then fail(format("%s: tables are nested deeper than %d, or hold themselves", who,
      MOST_DEPTH)) end
    out[#out + 1] = "{"
    for key, inner in next, copy(value) do
      write(out, key, depth + 1, who)
      write(out, inner, depth + 1, who)
    end
    out[#out + 1] = "}"
  end,
}

function write(out, value, depth, who)
  local writer = writers[type(value)]
  if not writer then fail(format("%s: a %s has no bytes; send numbers, texts, tensors and tables of them", who,
    type(value))) end
  writer(out, value, depth, who)
end

local read

-- By the letter that a value begins with: the value, and where the next one begins.
local readers = {
  z = function(_, at) return nil, at end,
  t = function(_, at) return true, at end,
  f = function(_, at) return false, at end,
  i = function(text, at) return unpack("<i8", text, at) end,
  d = function(text, at) return unpack("<d", text, at) end,
  s = function(text, at) return unpack("<s8", text, at) end,
  x = function(text, at)
    local dtype, dims, shape, bytes
    dtype, dims, at = unpack("<s1I1", text, at)
    shape = { unpack("<" .. rep("i8", dims), text, at) }
    at = table.remove(shape)
    bytes, at = unpack("<s8", text, at)
    return gb.from_bytes(bytes, dtype, shape, { device = "cpu" }), at
  end,
  ["{"] = function(text, at)
    local made = {}
    while sub(text, at, at) ~= "}" do
      local key, after = read(text, at)
      made[key], at = read(text, after)
    end
    return made, at + 1
  end,
}

function read(text, at) return readers[sub(text, at, at)](text, at + 1) end

local function bytes_of(value, who)
  local out = {}
  write(out, value, 1, who)
  return concat(out)
end

-- The bytes of a value that others wait for; of one that has none, which they are told, "!" and why. Then why, as it
-- was raised.
local function bytes_or_why(value, who)
  local ok, text = pcall(bytes_of, value, who)
  if ok then return text end
  return "!" .. tostring(text), text
end

-- The value that a rank has sent, which may be why it has none.
local function read_from(text, rank)
  if sub(text, 1, 1) == "!" then fail(format("rank %d: %s", rank, sub(text, 2))) end
  return (read(text, 1))
end

-- ====}

local function int64(value) return gb.tensor({ value }, { dtype = "int64", device = "cpu" }) end
local function as_tensor(text) return gb.from_bytes(text, "uint8", { #text }, { device = "cpu" }) end

dist.all_gather_object = define("gb.dist.all_gather_object(value: any) -> list: The values of all processes, in order \z
  of their ranks: numbers, texts, tensors (which come back on the CPU) and tables of them. A table stays the same \z
  only in what it holds. Errors: a value that has no bytes. Example: print(#gb.dist.all_gather_object({ loss = 0.5 }))",
  "strict", function(value)
    if dist.world_size() == 1 then return { (read(bytes_of(value, "all_gather_object"), 1)) } end
    local text, why = bytes_or_why(value, "all_gather_object")
    local sizes, most = dist.all_gather(int64(#text)), 0
    for i = 1, #sizes do
      sizes[i] = sizes[i]:item()
      most = math.max(most, sizes[i])
    end
    local all = dist.all_gather(as_tensor(text .. rep("\0", most - #text)))
    if why then error(why, 0) end
    for i = 1, #all do all[i] = read_from(sub(gb.to_bytes(all[i]), 1, sizes[i]), i - 1) end
    return all
  end)

-- The source's text on every process.
local function spread(text, source)
  local bytes = dist.broadcast(int64(#text), source):item()
  local is_source = dist.rank() == source
  return gb.to_bytes(dist.broadcast(as_tensor(is_source and text or rep("\0", bytes)), source))
end

dist.broadcast_object = define("gb.dist.broadcast_object(value?: any, source: count = 0) -> any: The value of the \z
  source on every process: a number, a text, a tensor (which comes on the CPU) or a table of them. Errors: a rank \z
  that is not there, a value that has no bytes. Example: print(gb.dist.broadcast_object({ lr = 0.1 }).lr)", "strict",
  function(value, source)
    local size = dist.world_size()
    if source >= size then
      fail(format("broadcast_object: 'source' is rank %d, and the job has %d: 0 to %d", source, size, size - 1))
    end
    if size == 1 then return (read(bytes_of(value, "broadcast_object"), 1)) end
    local text, why = "", nil
    if dist.rank() == source then text, why = bytes_or_why(value, "broadcast_object") end
    text = spread(text, source)
    if why then error(why, 0) end
    return read_from(text, source)
  end)

dist.once = define("gb.dist.once(fn: function, arguments...: any) -> any: Run fn(...) on rank 0 alone, as to write a \z
  file or to print; every process waits for it and gets what it returned, as broadcast_object gives it. Where it \z
  fails all fail, with its error. Example: gb.dist.once(print, \"from one process\")", "strict", function(fn, ...)
  if dist.world_size() == 1 then return fn(...) end
  local ok, text, why = true, "", nil
  if dist.rank() == 0 then
    ok, text = pcall(function(...) return bytes_of({ result = fn(...) }, "once") end, ...)
    if not ok then text, why = bytes_of({ why = tostring(text) }, "once"), text end
  end
  local told = read(spread(text, 0), 1)
  if not ok then error(why, 0) end
  if told.why then fail("rank 0: " .. told.why) end
  return told.result
end)

dist.any = define("gb.dist.any(flag: bool) -> bool: Does any process say true? Whether to stop is decided alike so: \z
  if gb.dist.any((stopper:check(loss))) then break end. Example: print(gb.dist.any(gb.dist.rank() == 0))", "strict",
  function(flag)
    local most = dist.all_reduce(int64(flag and 1 or 0), "max")
    return most:item() == 1
  end)

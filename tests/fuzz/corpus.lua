-- corpus.lua - small files of each kind that the fuzzer begins from: gibbous corpus.lua FOLDER, which holds a folder
-- for each kind.

local gb = require "gibbous"
local folder = assert(arg[1], "corpus.lua FOLDER")

local function put(name, text)
  local file = assert(io.open(folder .. "/" .. name, "wb"))
  assert(file:write(text))
  assert(file:close())
end

-- {==== safetensors ====

gb.save(folder .. "/safetensors/empty", {})
gb.save(folder .. "/safetensors/dtypes", {
  a = gb.ones(2, 3), b = gb.ones(2):to("float16"), c = gb.ones(3):to("bfloat16"), d = gb.tensor({ 1, 2 }),
    e = gb.ones(1):eq(1),
  f = gb.ones(2, 0, 3), g = gb.tensor(1.5):to("float64"), h = gb.tensor({ 3 }):to("uint8"),
})
gb.save(folder .. "/safetensors/metadata", { ["weight"] = gb.ones(1) },
  { metadata = { format = "pt", note = "\u{e9}\n" } })
local model = gb.nn.Linear(2, 2)
gb.io.save_checkpoint(folder .. "/safetensors/checkpoint",
  { model = model, optimizer = gb.optim.AdamW(model:parameters()), extra = { step = 1 } })
local set = gb.data.TensorDataset(gb.arange(12):reshape(6, 2):float())
local opt = gb.optim.AdamW(gb.nn.Linear(2, 2):parameters())
local run = {
  model = gb.nn.Linear(2, 2), optimizer = opt, scaler = gb.amp.GradScaler(),
    schedule = gb.optim.lr.Cosine(opt, { steps = 9 }),
  loader = gb.data.DataLoader(set, { batch_size = 2, shuffle = true }),
}
gb.io.save_checkpoint(folder .. "/checkpoint/run", run)
run.extra = { step = 3, best = math.huge, list = { 1, 2.5, "x", { true } }, kept = gb.ones(2) }
gb.io.save_checkpoint(folder .. "/checkpoint/extra", run)
local overlap =
  [[{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}]]
put("safetensors/overlap", string.pack("<s8", overlap) .. ("\0"):rep(8))

-- ====}

-- {==== JSON ====

for i, text in ipairs {
  "null", "[]", "{}", [[{"a":[1,-2,3.5e-7,true,false,null],"b":{"c":"\u00e9\ud83c\udf13\n\"\\"}}]],
    "18446744073709551615", "-9223372036854775808",
  "[[[[1]]]]", [[{"a":1,"a":2}]], [["\ud83c"]], "1e400", " [ 1 , 2 ] ", ("["):rep(65),
} do put("json/" .. i, text) end

-- ====}

-- {==== idx ====

local function idx(kind, shape, data)
  local header = string.pack(">BBBB", 0, 0, kind, #shape)
  for _, size in ipairs(shape) do header = header .. string.pack(">I4", size) end
  return header .. data
end
put("idx/images", idx(8, { 3, 2, 2 }, ("\1"):rep(12)))
put("idx/labels", idx(8, { 3 }, "\0\1\2"))
put("idx/int32", idx(12, { 2 }, string.pack(">i4i4", 1, -1)))
put("idx/float64", idx(14, { 1, 1 }, string.pack(">d", 0.5)))
put("idx/huge", idx(14, { 0x7fffffff, 0x7fffffff, 0x7fffffff }, ""))
put("idx/empty", idx(8, { 0 }, ""))
-- gzip, the data stored as it is (RFC 1952 and 1951, section 3.2.4); its check sum is of no interest to a fuzzer
local body = idx(8, { 2 }, "\5\6")
put("idx/stored.gz", "\31\139\8\0\0\0\0\0\0\3\1" .. string.pack("<I2I2", #body, 0xffff - #body) .. body ..
  string.pack("<I4I4", 0, #body))

-- ====}

-- The first byte says which kind of text, the second how much of it is the vocabulary.
for i, text in ipairs { "\0\0hello world", "\1\0bytes \255", "\0\3abccba", "\0\2\u{e9}\u{e9}", "\0\0\u{1f313}\u{e9}\0x",
  "\0\0\237\160\128" } do
  put("text/" .. i, text)
end

-- The first byte says how wide an id is; 16-bit ids may follow a header.
put("tokens/bytes", "\0abc")
put("tokens/plain", "\1" .. string.pack("<I2I2", 1, 50256))
put("tokens/headed", "\1" .. string.pack("<i4i4i4", 20240520, 1, 2) .. ("\0"):rep(1012) .. string.pack("<I2I2", 1, 2))
put("tokens/wide", "\2" .. string.pack("<i4i4", -1, 70000))

-- The first byte says how the table is read, the second how much of the text is a table that is fitted to.
for i, text in ipairs {
  "\1\0a,b,c\n1,x,2\n-3.5e2,\"y\"\",\n\",\n", "\17\0a;b\r\n1,5;u\r\n;v\r\n", "\0\0" .. "1,2\n3,4\n",
    "\193\12a,b\n1,u\n2,v\nb,a\nv,3\nw,\n",
  "\49\0n,y\nNA,1\n2,0\n7,inf\n", "\9\0x\n\"open\n", "\1\0\239\187\191a,a\r1,2", "\3\0a\n" .. ("\"q\"\n"):rep(3),
    "\1\0a,b\n1,2\n3\n",
} do put("csv/" .. i, text) end

-- The first byte says what pixels become, the second what is done to them; the files are those of the golden tests.
local goldens = arg[0]:match("^(.*)fuzz/corpus%.lua$") .. "golden/images/"
local number = 0
for line in io.lines(goldens .. "pixels.jsonl") do
  local name = gb.io.json_decode(line).name
  local file <close> = assert(io.open(goldens .. name, "rb"))
  put("image/" .. name, string.char(number % 3, number % 10) .. file:read("a"))
  number = number + 1
end

-- {==== NumPy's files and lines of JSON ====

-- The first byte says whether it is an archive.
local function saved(save, value)
  local path = os.tmpname()
  save(path, value)
  local file = assert(io.open(path, "rb"))
  local text = file:read("a")
  file:close()
  os.remove(path)
  return text
end
local tensors = { float = gb.rand(2, 3), bool = gb.ones(3):eq(1), scalar = gb.tensor(5), empty = gb.zeros(0, 2) }
for name, t in pairs(tensors) do
  put("npy/" .. name, "\0" .. saved(gb.io.save_npy, t))
end
local plain = saved(gb.io.save_npy, gb.arange(6):reshape(2, 3))
put("npy/fortran", "\0" .. plain:gsub("False", "True "))
put("npy/big", "\0" .. plain:gsub("<i8", ">i8"))
put("npy/unsigned", "\0" .. plain:gsub("<i8", "<u8"))
put("npy/version2", "\0" .. plain:sub(1, 6) .. "\2\0" .. string.pack("<I4", #plain - 58) .. plain:sub(11))
put("npy/archive", "\1" .. saved(gb.io.save_npz, { a = gb.rand(2), b = gb.ones(1):eq(1) }))
put("npy/none", "\1" .. saved(gb.io.save_npz, {}))
-- deflated, in one block that is stored as it is; the check sum is that of the same bytes stored
local archive = saved(gb.io.save_npz, { a = gb.tensor { 1, 2 } })
local from = archive:find("\x93NUMPY", 1, true)
local array = archive:sub(from, archive:find("PK\1\2", 1, true) - 1)
local packed = "\1" .. string.pack("<I2I2", #array, 0xffff - #array) .. array
local head, tail = archive:sub(1, from - 1), archive:sub(from + #array)
local function deflated(header, method, sizes)
  return header:sub(1, method) .. "\8\0" .. header:sub(method + 3, sizes) .. string.pack("<I4", #packed) ..
    header:sub(sizes + 5)
end
tail = deflated(tail, 10, 20)
tail = tail:sub(1, -7) .. string.pack("<I4", #head + #packed) .. tail:sub(-2)
put("npy/deflated", "\1" .. deflated(head, 8, 18) .. packed .. tail)

for i, text in ipairs {
  "{}\n[1]\r\n\n \t\n\"a\"", "\239\187\191{\"a\": 1}", "\n\n\n", "", "{\n}\n", "a\0b", "\r\n\r", " x \r\n",
} do
  put("lines/" .. i, text)
end

-- ====}

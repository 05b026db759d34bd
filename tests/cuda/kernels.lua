-- kernels.lua - what nvcc makes of the kernels: registers, spills, stack, shared memory and the warps that fit, and the
-- instructions of the hot ones, compared with the table in kernels.md. For sm_90; no device is needed.
--
--   build/gibbous tests/cuda/kernels.lua [--all] [--write] [FILE ...]
--
-- Without files those of GPT-2's step are compiled (`first`; one to three minutes of a core), with --all, as in CI,
-- every file (four to fifteen). --write puts what was found into the table. nvcc is taken from NVCC, the PATH or
-- /usr/local/cuda; nvdisasm, which reads instructions, from NVDISASM, the PATH, the toolkit, or the triton package of
-- the Python that GIBBOUS_PEER names. What is not found is skipped, and said.
--
-- It fails if a hot kernel spills or has a stack, if fewer of its warps fit on a multiprocessor than the table says, if
-- it has more calls, float64 instructions or late loads in its loops than the table says, or if it lacks the
-- instructions that it was written for; and if more kernels of another file spill. A kernel is hot that a training step
-- of GPT-2 or of a convolution net spends its time in, or its fallback. What breaks a rule and stays says why.

-- {==== hot kernels ====

-- Bytes of shared memory that a pass of attention's gradients asks for: `shape` of attend_backward.cu.
local function pass_bytes(columns, bytes)
  local short = bytes == 2
  local other = short and (columns <= 64 and 64 or columns <= 128 and 32 or 16) or columns <= 64 and 32 or 8
  local stride, room = columns + (short and 8 or 4), short and 0 or 16 * (other + 4)
  local lines = short and columns <= 128 and 2 * other or 0
  return (2 * 64 * stride + 4 * other * stride + 4 * room) * bytes + 2 * lines * 4
end

-- A row of the table below: the pass that computes `what`, plain or with mask, dropout or window.
local function pass(products, columns, what, plain, most)
  local short = products ~= "gb_float_products"
  return { ("pass_kernel<%s, %d, %d, %s>"):format(products, columns, what, plain), 128,
    shared = pass_bytes(columns, short and 2 or 4), most = most, tensor = short }
end

-- Rows: the kernel; threads of a block; bytes of shared memory that its launch gives; the registers that it may take
-- (more lower the warps that fit below what it was written for); wide: it must move 16 bytes at once, both ways or by
-- loads; tensor: it must have the instructions of Tensor Cores and of copies that go on meanwhile; ahead: its hot
-- loop asks for so many lines of memory before it loads what it works on; depth: its hot loop lies within so many, with
-- itself (1). why: what the rules do not allow, and stays.
local hot = {
  attend_backward = {
    pass("gb_short_products<true>", 64, 3, true, 168), pass("gb_short_products<true>", 64, 4, true, 128),
    pass("gb_short_products<false>", 64, 3, true, 168), pass("gb_short_products<false>", 64, 4, true, 128),
    pass("gb_short_products<true>", 128, 3, true), pass("gb_short_products<true>", 128, 4, true),
    pass("gb_short_products<true>", 64, 3, false), pass("gb_short_products<true>", 64, 4, false),
    pass("gb_float_products", 64, 3, false), pass("gb_float_products", 64, 4, false),
  },
  attend = { { "shift_lanes_kernel<3>", 256, wide = "loads" }, { "shift_kernel<float>", 128 } },
  linear_loss = { -- a row of GPT-2's 50,304 logits aside in shared memory
    { "logits_kernel<float>", 512, shared = 201232, most = 128, wide = "both" },
  },
  norm = {
    { "norm_held<4>", 128, wide = "both" },
    { "norm_held<16>", 512, most = 128, wide = "both" },
    { "norm_held<32>", 128, most = 128, wide = "both" },
    { "norm_backward_held<4>", 128, wide = "both", ahead = 2 },
    { "norm_backward_held<16>", 512, most = 128, wide = "both", ahead = 2 },
    { "sum_parts<float>", 1024 },
    { "apply_channels<float>", 256 },
    { "differentiate_channels<float>", 256 },
  },
  optim = {
    { "step_kernel<SGD_f32>", 256, most = 64, wide = "both", depth = 2 },
    { "step_kernel<Adam_f32>", 256, most = 64, wide = "both", depth = 2 },
    { "step_kernel<AdamW_f32>", 256, most = 64, wide = "both", depth = 2 },
    { "check_kernel", 256, wide = "both", depth = 2 },
  },
  elementwise_one = {
    { "strips_kernel<relu_f32, 1, 4>", 256, wide = "both" }, { "strips_kernel<relu_f32, 1, 8>", 256, wide = "both" },
    { "strips_kernel<gelu_tanh_near, 1, 8>", 256, wide = "both" },
  },
  elementwise_more = {
    { "strips_kernel<add_f32, 2, 4>", 256, wide = "both" }, { "strips_kernel<add_f32, 2, 8>", 256, wide = "both" },
    { "strips_kernel<mul_f32, 2, 4>", 256, wide = "both" },
    { "strips_kernel<relu_backward_f32, 2, 8>", 256, wide = "both" },
    { "strips_kernel<gelu_tanh_backward_f32, 2, 8>", 256, wide = "both" },
  },
  create = {
    { "strips_kernel<same_of<float>, 1, 4>", 256, wide = "both" },
    { "strips_kernel<same_of<float>, 1, 8>", 256, wide = "both" },
    { "turn_kernel<unsigned short>", 256 }, { "turn_kernel<unsigned int>", 256 },
  },
  index = { { "pick_rows<unsigned short>", 256 }, { "sum_sorted<float>", 256 } },
  softmax = {
    { "softmax_held<16>", 512, most = 128, wide = "both" },
    { "softmax_backward_held<16>", 512, most = 128, wide = "both" },
  },
  loss = {
    { "cross_entropy_rows<float>", 512, wide = "loads" },
    { "cross_entropy_backward_rows<float>", 512, wide = "both" },
  },
  reduce = { { "fold_along<float>", 256 }, { "fold_across<float>", 256 } },
  product = { { "finish_kernel<float>", 256 } },
}

-- The files that CI compiles.
local first = { "attend", "attend_backward", "create", "linear_loss", "norm", "optim" }

-- ====}

-- {==== what is run ====

local TABLE, FOLDER = "tests/cuda/kernels.md", "build-kernels"

local function fail(...)
  io.stderr:write("kernels: ", string.format(...), "\n")
  os.exit(1)
end

-- The text that a command prints, without the newline at its end; nil if it fails.
local function output(...)
  local pipe = assert(io.popen(string.format(...) .. " 2>/dev/null"))
  local text = pipe:read("a"):gsub("\n$", "")
  return pipe:close() and text ~= "" and text or nil
end

local function is_there(path)
  local file = path and io.open(path)
  return file and file:close() and path or nil
end

-- The first of these programs that is there.
local function find_nvcc()
  return os.getenv("NVCC") or output("command -v nvcc") or is_there("/usr/local/cuda/bin/nvcc")
end
local function find_nvdisasm(nvcc)
  local peer = os.getenv("GIBBOUS_PEER")
  local triton = peer and output("'%s' -c 'import triton; print(triton.__path__[0])'", peer)
  return os.getenv("NVDISASM") or output("command -v nvdisasm") or is_there((nvcc:gsub("[^/]*$", "nvdisasm")))
    or is_there(triton and triton .. "/backends/nvidia/bin/nvdisasm")
end

-- Compile the files side by side, each into FOLDER/NAME.cubin, with what ptxas says in FOLDER/NAME.log.
local function compile(nvcc, names)
  os.execute("mkdir -p " .. FOLDER)
  local list = FOLDER .. "/files"
  local file <close> = assert(io.open(list, "w"))
  file:write(table.concat(names, "\n"), "\n")
  file:flush()
  local command = string.format("'%s' -arch=sm_90 --options-file cuda/nvcc.options -cubin -Xptxas -v -I. -Iruntime "
    .. "-o %s/NAME.cubin cuda/NAME.cu >%s/NAME.log 2>&1 || { cat %s/NAME.log; exit 255; }",
    nvcc, FOLDER, FOLDER, FOLDER)
  local jobs = output("nproc") or "2"
  if not os.execute(("xargs -P %s -I NAME sh -c '%s' <%s"):format(jobs, command:gsub("'", [['"'"']]), list)) then
    fail("nvcc failed")
  end
end

-- ====}

-- {==== what ptxas says ====

-- A kernel's name as the table has it: with the arguments of its template, without its own.
local function plain_name(name)
  name = name:gsub("^void ", ""):gsub("%(anonymous namespace%)::", ""):gsub("%(int%)", ""):gsub(" >", ">")
  local depth = 0
  for i = 1, #name do
    local c = name:sub(i, i)
    depth = depth + (c == "<" and 1 or c == ">" and -1 or 0)
    if c == "(" and depth == 0 then return name:sub(1, i - 1) end
  end
  return name
end

-- The C++ names of mangled ones.
local function demangle(names)
  local list = FOLDER .. "/names"
  local file <close> = assert(io.open(list, "w"))
  file:write(table.concat(names, "\n"), "\n")
  file:flush()
  local plain = {}
  for line in (output("c++filt <%s", list) or ""):gmatch("[^\n]+") do plain[#plain + 1] = plain_name(line) end
  if #plain ~= #names then fail("c++filt, of the package binutils, is needed to read names") end
  return plain
end

-- The kernels of a compiled file: { name, symbol, registers, spill, stack, static }.
local function kernels_of(name)
  local kernels, symbols, at = {}, {}, {}
  for line in io.lines(FOLDER .. "/" .. name .. ".log") do
    local entry = line:match("Compiling entry function '(.-)' for")
    local properties = line:match("Function properties for (%S+)")
    local stack, stores, loads =
      line:match("(%d+) bytes stack frame, (%d+) bytes spill stores, (%d+) bytes spill loads")
    local registers = line:match("Used (%d+) registers")
    if entry then
      at = { symbol = entry, spill = 0, stack = 0, registers = 0 }
      kernels[#kernels + 1], symbols[#symbols + 1] = at, entry
    elseif properties and properties ~= at.symbol then at.other = true -- a function that is called
    elseif stack then
      at.stack, at.spill = at.stack + tonumber(stack), at.spill + tonumber(stores) + tonumber(loads)
    elseif registers then
      at.registers = tonumber(registers)
      at.static = tonumber(line:match("(%d+) bytes smem") or 0)
    end
  end
  for i, plain in ipairs(demangle(symbols)) do kernels[i].name = plain end
  return kernels
end

-- Warps that fit on a multiprocessor of compute capability 9.0: 65,536 registers, given to a warp 256 at a time and to
-- four warps at once; 228 KB of shared memory, of which each block takes 1 KB more than it asks for; 32 blocks; 64
-- warps.
local function warps_of(threads, registers, shared)
  local warps = (threads + 31) // 32
  local each = (registers * 32 + 255) // 256 * 256
  local by_registers = 65536 // each // 4 * 4 // warps
  local by_shared = (228 << 10) // (shared + 1024)
  return math.min(by_registers, by_shared, 32, 64 // warps) * warps
end

-- ====}

-- {==== instructions ====

-- The lines of nvdisasm for a function, as { op, text, label-of-target... } with the places of labels.
local function parse(lines)
  local code, labels = {}, {}
  for _, line in ipairs(lines) do
    local label = line:match("^([%.$][^%s:]+):")
    local text = line:match("/%*%x+%*/%s+(.-)%s*;")
    if label then labels[label] = #code + 1 end
    if text then
      local guard, rest = text:match("^(@!?U?P[%dT]+)%s+(.*)")
      rest = rest or text
      code[#code + 1] = { op = rest:match("^%S+"), text = rest, guard = guard,
        guarded = guard ~= nil and guard ~= "@PT" }
    end
  end
  return code, labels
end

-- Where control may go from an instruction.
local function successors(code, labels, i)
  local at, op = code[i], code[i].op
  local next_one = i < #code and { i + 1 } or {}
  if op:match("^EXIT") or op:match("^RET") then return at.guarded and next_one or {} end
  if op:match("^BRX") or op:match("^JMX") then
    local to = {}
    for label in at.text:gmatch("%.L_[%w_]+") do to[#to + 1] = labels[label] end
    return to
  end
  if op:match("^BRA") or op:match("^JMP") then
    local to = labels[at.text:match("`%((.-)%)") or ""]
    local open = at.guarded or at.text:match("^%S+%s+!?U?P%d") -- a second condition stands before the label
    if open then next_one[#next_one + 1] = to
    else next_one = { to } end
    return next_one
  end
  return next_one
end

-- The cycles among the instructions that `within` holds (nil: all), from `first` on, as lists: Tarjan's components.
local function cycles_from(first, targets, within)
  local number, low, on_stack, stack, count, cycles = {}, {}, {}, {}, 0, {}
  local work = { { first, 0 } }
  while #work > 0 do
    local top = work[#work]
    local i = top[1]
    if top[2] == 0 then
      count = count + 1
      number[i], low[i], on_stack[i] = count, count, true
      stack[#stack + 1] = i
    end
    top[2] = top[2] + 1
    local j = targets[i][top[2]]
    if j and within and not within[j] then -- outside
    elseif j then
      if not number[j] then work[#work + 1] = { j, 0 }
      elseif on_stack[j] then low[i] = math.min(low[i], number[j]) end
    else
      work[#work] = nil
      local before = work[#work]
      if before then low[before[1]] = math.min(low[before[1]], low[i]) end
      if low[i] == number[i] then
        local members, again = {}, false
        repeat
          local k = table.remove(stack)
          on_stack[k] = false
          members[#members + 1] = k
        until k == i
        for _, k in ipairs(targets[i]) do again = again or k == i end
        if #members > 1 or again then cycles[#cycles + 1] = members end
      end
    end
  end
  return cycles, number
end

-- How many loops each instruction lies in: a loop's first instruction taken away, what still is a cycle is a loop in
-- it.
local function depths_of(code, labels)
  local targets, depth = {}, {}
  for i = 1, #code do targets[i] = successors(code, labels, i) end
  local function descend(cycles, level)
    for _, members in ipairs(cycles) do
      local within, first = {}, math.huge
      for _, k in ipairs(members) do
        depth[k], within[k], first = level, true, math.min(first, k)
      end
      within[first] = nil
      local seen = {}
      for _, k in ipairs(members) do
        if k ~= first and not seen[k] then
          local inner, reached = cycles_from(k, targets, within)
          for r in pairs(reached) do seen[r], within[r] = true, nil end
          descend(inner, level + 1)
        end
      end
    end
  end
  if #code > 0 then descend((cycles_from(1, targets)), 1) end
  return depth
end

-- The registers that an instruction names from operand `from` on, as a set; wide: bytes of those that hold data or
-- addresses of more than one register.
local function add_registers(set, text, wide)
  for kind, number, rest in text:gmatch("%f[%w](U?[RP])(%d+)(%.?%d*)") do
    local count = kind:match("R$") and math.max(wide, rest == ".64" and 2 or 1) or 1
    for i = 0, count - 1 do set[kind .. tonumber(number) + i] = true end
  end
  return set
end

-- Registers that an instruction holds in one operand: 4 bytes each.
local function registers_of(op)
  return op:match("%.128") and 4 or (op:match("%.64") or op:match("WIDE") or op:match("^D[AMSF]")) and 2 or 1
end

-- Loads of global memory among instructions first .. last, which run one after another, that are issued behind the
-- first use of what an earlier one brings, though they do not wait for it themselves: each costs the latency of memory
-- once more. Those of less than 4 bytes are left out: the edges of rows are taken so.
local function late_loads(code, first, last)
  local pending, derived, used, late = {}, {}, false, 0 -- what loads bring; what was computed from it
  local function waits(set)
    local of_load, of_derived = false, false
    for register in pairs(set) do
      of_load, of_derived = of_load or pending[register] ~= nil, of_derived or derived[register] ~= nil
    end
    return of_load, of_derived
  end
  for i = first, last do
    local op, text = code[i].op, code[i].text
    local rest = text:sub(#op + 1)
    local is_load, width = op:match("^LDG?%.") ~= nil, registers_of(op)
    local stores = op:match("^ST") or op:match("^RED") or op:match("^LDGSTS")
    local target, sources = rest:match("^%s*([^,]+),(.*)$")
    if stores or not target then target, sources = "", rest end
    -- a comparison gives two predicates: neither is a source
    local second, others = sources:match("^%s*(U?P[%dT]+),(.*)$")
    if second and op:match("SETP") then target, sources = target .. "," .. second, others end
    local reads = add_registers({}, sources, is_load and 1 or width)
    if code[i].guard then add_registers(reads, code[i].guard, 1) end
    local of_load, of_derived = waits(reads)
    if is_load and used and not (of_load or of_derived or op:match("[US]%d+$")) then late = late + 1 end
    used = used or of_load
    for register in pairs(add_registers({}, target, width)) do
      pending[register] = is_load or nil
      derived[register] = not is_load and (of_load or of_derived) or nil
    end
  end
  return late
end

-- The count above finds what is planted.
local function check_late_loads()
  local cases = {
    { 1, "LDG.E.128 R4, desc[UR4][R2.64]", "FADD R8, R7, R1", "LDG.E R9, desc[UR4][R10.64]" },
    { 0, "LDG.E.128 R4, desc[UR4][R2.64]", "LDG.E R9, desc[UR4][R10.64]", "FADD R8, R7, R9" },
    { 0, "LDG.E.64 R4, desc[UR4][R2.64]", "IMAD.WIDE R6, R4, 0x4, R2", "LDG.E R9, desc[UR4][R6.64]" },
    { 0, "LDG.E R4, desc[UR4][R2.64]", "FSETP.GT.AND P0, PT, R4, R1, PT", "@P0 LDG.E R9, desc[UR4][R6.64]" },
    { 1, "LDG.E R4, desc[UR4][R2.64]", "STG.E desc[UR4][R10.64], R4", "LDG.E.64 R8, desc[UR4][R6.64]" },
    { 0, "LDG.E R4, desc[UR4][R2.64]", "MOV R4, R1", "FADD R8, R4, R1", "LDG.E R9, desc[UR4][R6.64]" },
  }
  for i, case in ipairs(cases) do
    local lines = {}
    for j = 2, #case do lines[j - 1] = ("        /*%04x*/                   %s ;"):format(16 * j, case[j]) end
    local code = parse(lines)
    local found = late_loads(code, 1, #code)
    if found ~= case[1] then error(("kernels.lua: case %d has %d late loads, not %d"):format(i, found, case[1])) end
  end
end

local function is_double(op) return op:match("^D[AMSF][DUEM][DLTA]") ~= nil or op:match("F64") ~= nil end

-- What the table says of a kernel's instructions. Calls are those of divisions, powers and the like that are too long
-- to be repeated, but for the paths of divisions and roots that only numbers at the edges of the range take; divisions
-- of 64-bit integers are counted apart. Counted are those in loops of so many others that the kernel calls hot.
local function survey(lines, hot_depth)
  local code, labels = parse(lines)
  local depth = depths_of(code, labels)
  local found = { loads = 0, stores = 0, tensor = 0, matrices = 0, copies = 0, calls = 0, wide_divisions = 0,
    doubles = 0, late = 0, ahead = 0 }
  local loaded = false
  local starts = { [1] = true, [#code + 1] = true } -- of pieces that run from their first instruction to their last
  for _, at in pairs(labels) do starts[at] = true end
  for i, at in ipairs(code) do
    if at.op:match("^BRA") or at.op:match("^BRX") or at.op:match("^CALL") or at.op:match("^BAR") then
      starts[i + 1] = true
    end
  end
  local from = 1
  for i = 2, #code + 1 do
    if starts[i] then
      if (depth[from] or 0) >= hot_depth then found.late = found.late + late_loads(code, from, i - 1) end
      from = i
    end
  end
  local function add(what, yes) found[what] = found[what] + (yes and 1 or 0) end
  for i, at in ipairs(code) do
    local op = at.op
    add("loads", op:match("^LDG?%.") and op:match("%.128"))
    add("stores", op:match("^STG?%.") and op:match("%.128"))
    add("tensor", op:match("^HMMA%.16816"))
    add("matrices", op:match("^LDSM"))
    add("copies", op:match("^LDGSTS"))
    local looped = (depth[i] or 0) >= hot_depth
    local callee = looped and op:match("^CALL") and not at.text:match("slowpath") and not at.text:match("mediumpath")
      and at.text
    add("wide_divisions", callee and callee:match("_[su]64"))
    add("calls", callee and not callee:match("_[su]64"))
    add("doubles", looped and is_double(op))
    loaded = loaded or looped and op:match("^LDG%.E%.64") or looped and op:match("^LDG%.E%.128")
    add("ahead", looped and not loaded and op:match("^CCTL%.E%.PF2"))
  end
  return found
end

-- The instructions of the kernels whose symbols are given, by symbol.
local function disassemble(nvdisasm, name, wanted)
  local path, indices = FOLDER .. "/" .. name .. ".cubin", {}
  for line in (output("readelf -sW %s", path) or ""):gmatch("[^\n]+") do
    local index, symbol = line:match("^%s*(%d+):.*FUNC.*%s(%S+)$")
    if symbol and wanted[symbol] then indices[#indices + 1] = index end
  end
  if #indices == 0 then fail("readelf finds no kernels in %s", path) end
  local pipe = assert(io.popen(("'%s' -c -fun %s %s 2>&1"):format(nvdisasm, table.concat(indices, ","), path)))
  local found, lines = {}, nil
  for line in pipe:lines() do
    local symbol = line:match("^%s*%.section%s+%.text%.([^,%s]+)")
    if symbol then
      lines = {}
      found[symbol] = lines
    elseif lines then lines[#lines + 1] = line end
  end
  pipe:close()
  return found
end

-- ====}

-- {==== the table ====

local columns = { "threads", "shared", "registers", "spill", "stack", "warps", "loads", "stores", "tensor", "matrices",
  "copies", "calls", "wide_divisions", "doubles", "late" }
local titles = { "threads", "shared memory", "registers", "spilled bytes", "stack", "warps of 64", "128-bit loads",
  "128-bit stores", "HMMA.16816", "LDSM", "LDGSTS", "calls", "64-bit divisions", "float64", "late loads" }
local file_columns = { "kernels", "registers", "spilling", "spill", "stacks" }
local file_titles = { "kernels", "most registers", "that spill", "spilled bytes", "with a stack" }

-- The rows of the table by kernel and by file, and the version of nvcc; nothing where there is no table yet.
local function read_table()
  local rows, files, version = {}, {}, nil
  local file <close> = io.open(TABLE)
  if not file then return rows, files, version end
  for line in file:lines() do
    version = line:match("^nvcc ([%d.]+)") or version
    local name, rest = line:match("^| `([^`]+)` |(.*)|$")
    if name then
      local to = name:match("^[%w_]+%.cu$") and files or rows
      local keys, row, i = to == files and file_columns or columns, {}, 0
      for value in rest:gmatch("[^|]+") do
        i = i + 1
        row[keys[i]] = tonumber(value)
      end
      to[name] = row
    end
  end
  return rows, files, version
end

-- Hot files in alphabetical order.
local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

local function write_table(rows, files, version)
  local out <close> = assert(io.open(TABLE, "w"))
  local function line(name, row, keys)
    local cells = { name }
    for i, key in ipairs(keys) do cells[i + 1] = tostring(row[key] or "") end
    out:write("| ", table.concat(cells, " | "), " |\n")
  end
  local function head(first, names)
    line(first, names, (function() local k = {} for i = 1, #names do k[i] = i end return k end)())
    out:write("|---", ("|---:"):rep(#names), "|\n")
  end
  out:write("# What nvcc makes of the kernels\n\n",
    "Written by `./dev kernels --all --write`, and compared by `./dev kernels`; kernels.lua beside this says how.\n\n",
    "nvcc ", version, ", sm_90. Shared memory is that of a block, in bytes. `warps of 64` are those that fit on a\n",
    "multiprocessor at once. Calls, 64-bit divisions and float64 are counted in hot loops only. They are\n",
    "instructions that are there, not those that run: most stand in branches for dtypes and sizes that a launch of\n",
    "GPT-2 does not have. A late load of global memory is issued behind the first use of what an earlier one brings,\n",
    "without need of it; it too is counted in hot loops only, of 4 bytes and more, within pieces without a branch.\n\n",
    "## Hot kernels\n\n")
  head("kernel", titles)
  local notes = {}
  for _, name in ipairs(sorted_keys(hot)) do
    for _, kernel in ipairs(hot[name]) do
      if rows[kernel[1]] then line("`" .. kernel[1] .. "`", rows[kernel[1]], columns) end
      if kernel.why then notes[#notes + 1] = ("- `%s`: %s\n"):format(kernel[1], kernel.why) end
    end
  end
  if #notes > 0 then out:write("\n", table.concat(notes)) end
  out:write("\n## All kernels, by file\n\n")
  head("file", file_titles)
  for _, name in ipairs(sorted_keys(files)) do line("`" .. name .. "`", files[name], file_columns) end
end

-- ====}

-- {==== comparing ====

local findings = 0
local function finding(...)
  findings = findings + 1
  print("kernels: " .. string.format(...))
end

-- What no hot kernel may have, unless it says why, and what none may have more of than it had.
local function judge(kernel, now, before, same_nvcc, seen)
  local name = kernel[1]
  local function forbid(what, text, allowed)
    local most = kernel.why and before and before[what] or allowed
    if now[what] and now[what] > most then finding("%s: %d %s, at most %d", name, now[what], text, most) end
  end
  forbid("spill", "bytes are spilled", 0)
  forbid("stack", "bytes of stack", 0)
  if same_nvcc then
    if kernel.most then forbid("registers", "registers", kernel.most) end
    if before and before.warps and now.warps < before.warps then
      finding("%s: %d warps fit with %d registers, where %d did with %d", name, now.warps, now.registers, before.warps,
        before.registers)
    end
  end
  if not seen then return end
  for _, what in ipairs { "calls", "wide_divisions", "doubles", "late" } do
    forbid(what, "instructions in loops that are " .. what, before and before[what] or 0)
  end
  if kernel.wide and (now.loads == 0 or kernel.wide == "both" and now.stores == 0) then
    finding("%s: %d loads and %d stores of 16 bytes", name, now.loads, now.stores)
  end
  if kernel.ahead and now.ahead < kernel.ahead then
    finding("%s: %d lines of memory asked for ahead, of %d", name, now.ahead, kernel.ahead)
  end
  if kernel.tensor and (now.tensor == 0 or now.matrices == 0 or now.copies == 0) then
    finding("%s: %d HMMA.16816, %d LDSM, %d LDGSTS", name, now.tensor, now.matrices, now.copies)
  end
end

-- ====}

check_late_loads()
local all, write, named = false, false, {}
for _, word in ipairs(arg) do
  if word == "--all" then all = true
  elseif word == "--write" then write = true
  elseif word:match("^%-") then fail("unknown option %s", word)
  else named[#named + 1] = word:gsub("^.*/", ""):gsub("%.cu$", "") end
end
local nvcc = find_nvcc()
if not nvcc then
  print("kernels: nvcc was not found, so no kernel was compiled for a device: skipped")
  return
end
local version = (output("'%s' --version", nvcc) or ""):match("release ([%d.]+)") or fail("%s tells no version", nvcc)
local nvdisasm = find_nvdisasm(nvcc)
if not nvdisasm then
  print("kernels: nvdisasm was not found (NVDISASM names it; the triton package has one): instructions are skipped")
  if write then fail("--write needs nvdisasm") end
end
local names = #named > 0 and named or first
if all then
  names = {}
  for path in output("ls cuda/*.cu"):gmatch("[^\n]+") do names[#names + 1] = path:match("([^/]+)%.cu$") end
end
for _, name in ipairs(names) do
  if not is_there("cuda/" .. name .. ".cu") then fail("there is no cuda/%s.cu", name) end
end

local rows, files, kept_version = read_table()
local same_nvcc = kept_version == version or kept_version == nil
if not same_nvcc then
  print(("kernels: nvcc is %s and the table is of %s: registers and warps are not compared"):format(version,
    kept_version))
end
compile(nvcc, names)
local counted = 0
for _, name in ipairs(names) do
  local kernels, by_name, wanted = kernels_of(name), {}, {}
  local sum = { kernels = #kernels, registers = 0, spilling = 0, spill = 0, stacks = 0 }
  for _, k in ipairs(kernels) do
    by_name[k.name] = k
    sum.registers = math.max(sum.registers, k.registers)
    sum.spilling, sum.spill = sum.spilling + (k.spill > 0 and 1 or 0), sum.spill + k.spill
    sum.stacks = sum.stacks + (k.stack > 0 and 1 or 0)
  end
  counted = counted + #kernels
  local before = files[name .. ".cu"]
  if before and same_nvcc and (sum.spilling > before.spilling or sum.stacks > before.stacks) then
    finding("%s.cu: %d kernels spill and %d have a stack, where %d and %d did", name, sum.spilling, sum.stacks,
      before.spilling, before.stacks)
  end
  files[name .. ".cu"] = sum
  for _, kernel in ipairs(hot[name] or {}) do
    local k = by_name[kernel[1]]
    if k then wanted[k.symbol] = true
    else finding("%s.cu has no kernel %s", name, kernel[1]) end
  end
  local code = nvdisasm and next(wanted) and disassemble(nvdisasm, name, wanted) or {}
  for _, kernel in ipairs(hot[name] or {}) do
    local k = by_name[kernel[1]]
    if k then
      local now = { threads = kernel[2], shared = (kernel.shared or 0) + k.static, registers = k.registers,
        spill = k.spill, stack = k.stack }
      now.warps = warps_of(now.threads, now.registers, now.shared)
      local lines = code[k.symbol]
      if nvdisasm and not lines then fail("nvdisasm says nothing of %s", k.symbol) end
      if lines then for what, count in pairs(survey(lines, kernel.depth or 1)) do now[what] = count end end
      judge(kernel, now, rows[kernel[1]], same_nvcc, lines ~= nil)
      rows[kernel[1]] = now
      local spilled = now.spill + now.stack > 0 and (" spill %d stack %d"):format(now.spill, now.stack) or ""
      print(("%-58s %4d threads %6d shared %4d registers %3d warps%s"):format(kernel[1], now.threads, now.shared,
        now.registers, now.warps, spilled))
    end
  end
end
if write then write_table(rows, files, version) end
print(("kernels: %d kernels of %d files, nvcc %s: %s"):format(counted, #names, version,
  findings == 0 and "nothing found" or findings .. " findings"))
if findings > 0 and not write then os.exit(1) end

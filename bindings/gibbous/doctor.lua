-- doctor.lua - gb.doctor: what this machine can do for mixed precision, line by line, and what is wrong with it.
--
-- Each line is { subject, status, text, cure }; status is "ok", "warning" or "error". Libraries of NVIDIA's are asked
-- for their versions where they can be opened, whether or not this build uses them.

local gb, native = ...
local format, match, gmatch, gsub, find, byte, rep = string.format, string.match, string.gmatch, string.gsub,
  string.find, string.byte, string.rep
local concat, open = table.concat, io.open

-- {==== reading the machine ====

local function read_file(path)
  local file = open(path, "r")
  local text = file and file:read("a") or ""
  if file then file:close() end
  return text
end

-- The CPU's name and a set of its features, as Linux lists them.
local function cpu()
  local text, features = read_file("/proc/cpuinfo"), {}
  local list = match(text, "\nflags%s*: ([^\n]*)") or match(text, "\nFeatures%s*: ([^\n]*)") or ""
  for word in gmatch(list, "%S+") do features[word] = true end
  return match(text, "\nmodel name%s*: ([^\n]*)") or "unknown CPU", features
end

local function memory_bytes()
  local total, free = match(read_file("/proc/meminfo"), "MemTotal:%s*(%d+) kB.-MemAvailable:%s*(%d+) kB")
  return total and total * 1024, free and free * 1024
end

local function gigabytes(bytes) return format("%.1f GiB", bytes / 2^30) end

-- 12040 as "12.4": what a version number of NVIDIA's says, by the weights of its parts.
local function version_text(number, major, minor)
  local text = format("%d.%d", number // major, number % major // minor)
  return minor > 1 and number % minor > 0 and minor < 1000 and format("%s.%d", text, number % minor) or text
end

-- ====}

-- {==== the lines ====

-- What multiplies bfloat16 at which level.
local units = { ["v4-amx"] = "AMX tiles, float16 too", ["v4-bf16"] = "AVX512_BF16" }

local function add_cpu(add)
  local name, features = cpu()
  local engine = native.engine()
  add("cpu", "ok", format("%s; kernels for level %s", name, engine.level))
  if engine.level == "baseline" and features.avx2 then
    add("cpu level", "warning", "the CPU has AVX2, the build has no kernels for it", "build with -DGIBBOUS_LEVELS=ON")
  elseif engine.level == "baseline" and not features.asimd then
    add("cpu level", "warning", "without AVX2 and FMA products of matrices take several times as long",
      "a CPU of 2013 or later")
  end
  if features.f16c or features.asimdhp or features.fphp then
    add("float16", "ok", "converted by the CPU while it is loaded; arithmetic is float32")
  elseif features.asimd then add("float16", "ok", "converted by the CPU; arithmetic is float32")
  else add("float16", "warning", "without F16C it is converted bit by bit",
    "use bfloat16, which is half of a float32") end
  local unit = units[engine.level]
  add("bfloat16", "ok", "half of a float32: loading it costs a shift; arithmetic is float32" ..
    (unit and "; products of matrices by " .. unit or ""))
  if features.amx_bf16 and engine.level ~= "v4-amx" then
    add("amx", "warning", "the CPU has AMX, the system or the build does not let it be used",
      "Linux 5.16 or later, and -DGIBBOUS_LEVELS=ON")
  end
  add("dtypes", "ok", engine.level == "v4-amx" and
    "products of 16-bit matrices are several times as fast as of float32" or
    "on the CPU 16-bit saves memory and bandwidth, not arithmetic; expect the speed of float32")
  local threads = gb.get_num_threads()
  if threads > engine.cores then
    add("threads", "warning", format("%d for %d cores", threads, engine.cores), "gibbous --threads " .. engine.cores)
  else add("threads", "ok", format("%d of %d cores", threads, engine.cores)) end
  local total, free = memory_bytes()
  if total then add("memory", "ok", format("%s, of which %s can be had", gigabytes(total), gigabytes(free))) end
end

local function add_libraries(add)
  add("matrix products", "ok", "kernels of our own; no BLAS is used")
  if pcall(gb.linalg.inv, gb.eye(1, { device = "cpu" })) then
    add("LAPACK", "ok", "gb.linalg runs on it, a thread for each matrix")
  else add("LAPACK", "warning", "not there, or not part of this build; gb.linalg needs it",
    "install liblapack3, or liblapack-dev and build again") end
  local version, why = native.library("onednn")
  if version then
    add("oneDNN", "ok", format("version %s convolves in float32, and bfloat16 by AMX or AVX512_BF16", version))
  elseif why then
    add("oneDNN", "warning", why .. "; convolutions take about three times as long",
      "install libdnnl" .. (match(why, "libdnnl%.so%.(%d+)") or ""))
  else add("oneDNN", "warning", "not part of this build; convolutions take about three times as long",
    "install libdnnl-dev and build again") end
end

-- What a compute capability can do natively.
local function dtypes_of(major, minor)
  local list = { "float32" }
  if major >= 7 then list[#list + 1] = "float16 on Tensor Cores" end
  if major >= 8 then list[#list + 1] = "bfloat16 and TF32 on Tensor Cores" end
  if major > 8 or major == 8 and minor >= 9 then list[#list + 1] = "float8" end
  return concat(list, ", ")
end

local function add_devices(add, devices)
  for i, device in ipairs(devices) do
    local capability = device.major + device.minor / 10
    local text = format("%s, compute capability %.1f, %s; %s", device.name, capability, gigabytes(device.memory),
      dtypes_of(device.major, device.minor))
    if device.major < 8 then
      add("cuda:" .. i - 1, "warning", text .. "; the CUDA backend has no kernels for it",
        "train on the CPU, or on a GPU of capability 8.0 (2020) or later")
    else add("cuda:" .. i - 1, "ok", text) end
  end
end

-- The libraries that the CUDA backend uses: name, how to ask, weights of the version's parts, what is wrong with one
-- that is missing.
local parts = {
  { "CUDA runtime", "cudart", 1000, 10, "the CUDA backend cannot start", "install cuda-cudart" },
  { "cuBLASLt", "cublaslt", 10000, 100, "no products of matrices on the GPU", "install libcublas" },
  { "cuSOLVER", "cusolver", 1000, 100, "gb.linalg of a GPU's tensors computes on the CPU", "install libcusolver" },
  { "cuDNN", "cudnn", 10000, 100, "no convolution and attention on the GPU", "install libcudnn9" },
  { "NCCL", "nccl", 10000, 100, "only one GPU can be used at a time", "install libnccl2" },
}

-- What the backend can do without.
local optional = { cusolver = true, nccl = true }

-- The backend itself, which brings libraries along that are found nowhere else.
local function add_backend(add, available, why)
  if available then add("CUDA backend", "ok", "gibbous_cuda.so is loaded")
  elseif find(why, "not installed", 1, true) then
    add("CUDA backend", "warning", "gibbous_cuda.so is not installed: everything runs on the CPU",
      "build it (GIBBOUS_CUDA=on), install the package gibbous-cuda, or name its folder in GIBBOUS_PLUGINS")
  else add("CUDA backend", "error", "gibbous_cuda.so does not start: " .. why, "what is wrong above; or a \z
    gibbous_cuda.so of version " .. gb.version) end
end

local function add_cuda(add)
  -- first: the libraries that it has loaded are those that are asked below
  local available, why = gb.cuda.is_available()
  local driver, devices, reason = native.library("driver")
  if not driver then
    add("CUDA driver", "ok", "none: everything runs on the CPU")
    return
  end
  add("CUDA driver", #devices > 0 and "ok" or "error",
    format("for CUDA %s, %d device%s%s", version_text(driver, 1000, 10), #devices,
    #devices == 1 and "" or "s", reason and format(" (%s)", reason) or ""), #devices == 0 and
      "nvidia-smi says why no device answers" or nil)
  add_devices(add, devices)
  local runtime
  for _, part in ipairs(parts) do
    local name, key, major, minor, lack, cure = table.unpack(part)
    local version = native.library(key, key == "cudart" and driver // 1000 or key == "cublaslt" and runtime and
      runtime // 1000 or nil)
    if key == "cudnn" and version and version < 9000 then major = 1000 end
    if not version and key == "nccl" and #devices < 2 then add(name, "ok", "not found; one GPU does not need it")
    elseif not version then add(name, optional[key] and "warning" or "error", "not found: " .. lack, cure)
    elseif key == "cudart" and version // 1000 > driver // 1000 then
      add(name, "error", format("%s needs a newer driver than the one for CUDA %s", version_text(version, 1000, 10),
        version_text(driver, 1000, 10)),
        "update the driver, or install the runtime of CUDA " .. driver // 1000)
    elseif key == "cublaslt" and runtime and version // 10000 ~= runtime // 1000 then
      add(name, "error", format("%s does not fit the runtime %s", version_text(version, major, minor),
        version_text(runtime, 1000, 10)),
        "install the libcublas of CUDA " .. runtime // 1000)
    elseif key == "cudnn" and version < 90000 then
      add(name, "error", version_text(version, major, minor) .. " is too old", "install cuDNN 9")
    else add(name, "ok", version_text(version, major, minor)) end
    if key == "cudart" then runtime = version end
  end
  add_backend(add, available, why)
end

-- ====}

-- {==== the report ====

local function json_text(value)
  if type(value) ~= "table" then
    local function escape(c) return format("\\u%04x", byte(c)) end
    return type(value) == "string" and '"' .. gsub(value, '[%c"\\]', escape) .. '"' or tostring(value)
  end
  local list = {}
  for _, item in ipairs(value) do list[#list + 1] = json_text(item) end
  if #list > 0 then return "[" .. concat(list, ",") .. "]" end
  local keys = {}
  for key in pairs(value) do keys[#keys + 1] = key end
  table.sort(keys)
  for _, key in ipairs(keys) do list[#list + 1] = json_text(key) .. ":" .. json_text(value[key]) end
  return "{" .. concat(list, ",") .. "}"
end

local function print_lines(lines)
  print(format("%s, %s", gb._VERSION, _VERSION))
  for _, line in ipairs(lines) do
    print(format("%-8s %-16s %s", line.status, line.subject, line.text))
    if line.cure then print(rep(" ", 26) .. "cure: " .. line.cure) end
  end
end

-- What gb.doctor does; its record is in init.lua.
function native.late.doctor(options)
  local lines, sound = {}, true
  local function add(subject, status, text, cure)
    lines[#lines + 1] = { subject = subject, status = status, text = text, cure = cure }
    sound = sound and status ~= "error"
  end
  add_cpu(add)
  add_libraries(add)
  add_cuda(add)
  if options.json then print(json_text { version = gb.version, lua = _VERSION, lines = lines })
  else print_lines(lines) end
  return sound
end

-- ====}

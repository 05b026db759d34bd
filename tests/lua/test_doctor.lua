-- test_doctor.lua - what the doctor says of CUDA: with everything there, with parts missing, and with parts that do not
-- fit each other. The driver and the libraries are stood in for by one library (tests/c/fake_nvidia.c), whose path is
-- the first argument. The second is the file of oneDNN, where it is opened when it is wanted: that it is, and what is
-- said where it is not there.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local gibbous, fake, onednn = gb.test.program(), arg[1], arg[2]
local all = { "libcuda.so.1", "libcudart.so.12", "libcublasLt.so.12", "libcusolver.so.12", "libcudnn.so.9",
  "libnccl.so.2" }
local others = { "libcudart.so.13", "libcudart.so.11.0", "libcublasLt.so.13", "libcublasLt.so.11", "libcudnn.so.8" }

-- What gibbous prints with these arguments where all libraries but those `without` are there, with settings of the
-- environment, and its status.
local function output(arguments, settings, without)
  local folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir " .. folder))
  for _, name in ipairs(all) do
    if name ~= without then assert(os.execute(("ln -s '%s' '%s/%s'"):format(fake, folder, name))) end
  end
  -- no library: it hides what this machine may have
  for _, name in ipairs { without or others[1], table.unpack(others) } do
    assert(os.execute((": >'%s/%s'"):format(folder, name)))
  end
  local pipe = assert(io.popen(("%s LD_LIBRARY_PATH=%s '%s' %s 2>&1; echo \"status $?\""):format(settings, folder,
    gibbous, arguments)))
  local text = pipe:read("a")
  pipe:close()
  os.execute("rm -r " .. folder)
  return text, tonumber(text:match("status (%d+)\n$"))
end

-- The report holds each of the texts, and the status is as said.
local function expect_report(name, settings, without, status, ...)
  local wanted = { ... }
  it(name, function()
    local text, got = output("--doctor", settings, without)
    for _, part in ipairs(wanted) do
      if not text:find(part, 1, true) then error(("expected '%s' in:\n%s"):format(part, text), 0) end
    end
    expect(got):to_be(status)
  end)
end

-- A folder whose gibbous_cuda.so is made by a command.
local made = {}
local function plugins(command)
  local folder = os.tmpname()
  os.remove(folder)
  made[#made + 1] = folder
  assert(os.execute(("mkdir %s && %s %s/gibbous_cuda.so"):format(folder, command, folder)))
  return folder
end

describe("the doctor and CUDA", function()
  expect_report("everything fits", "", nil, 0, "CUDA driver      for CUDA 12.4, 1 device\n",
    "cuda:0           Fake 0, compute capability 9.0, 8.0 GiB; float32, float16 on Tensor Cores, bfloat16 and TF32 \z
      on Tensor Cores, float8",
    "ok       CUDA runtime     12.4\n", "ok       cuBLASLt         12.4.3\n", "ok       cuSOLVER         11.6.4\n",
      "ok       cuDNN            9.1\n",
      "ok       NCCL             2.20.5\n")
  expect_report("the driver is too old", "FAKE_DRIVER=11080", nil, 1, "error    CUDA runtime     12.4 needs a newer \z
    driver than the one for CUDA 11.8\n",
    "cure: update the driver")
  expect_report("cuBLAS is of another CUDA", "FAKE_CUBLAS=111103", nil, 1, "error    cuBLASLt         11.11.3 does \z
    not fit the runtime 12.4\n")
  expect_report("cuDNN is too old", "FAKE_CUDNN=8902", nil, 1, "error    cuDNN            8.9.2 is too old\n",
    "cure: install cuDNN 9")
  expect_report("no runtime", "", "libcudart.so.12", 1, "error    CUDA runtime     not found: the CUDA backend \z
    cannot start\n", "cure: install cuda-cudart")
  expect_report("no cuSOLVER", "", "libcusolver.so.12", 0, "warning  cuSOLVER         not found: gb.linalg of a GPU's")
  expect_report("no NCCL, one device", "", "libnccl.so.2", 0, "ok       NCCL             not found; one GPU does \z
    not need it\n")
  expect_report("no NCCL, two devices", "FAKE_DEVICES=2", "libnccl.so.2", 0, "2 devices\n", "cuda:1           Fake 1",
    "warning  NCCL", "cure: install libnccl2")
  expect_report("no device answers", "FAKE_DEVICES=0", nil, 1, "error    CUDA driver      for CUDA 12.4, 0 devices\n")
  expect_report("the driver does not start", "FAKE_INIT=803", nil, 1,
    "error    CUDA driver      for CUDA 12.4, 0 devices (error 803, system has unsupported display driver / cuda \z
      driver combination)\n", "cure: nvidia-smi")
  expect_report("the driver does not count", "FAKE_COUNT=100 FAKE_DEVICES=3", nil, 1,
    "error    CUDA driver      for CUDA 12.4, 0 devices (error 100)\n")
  expect_report("old devices", "FAKE_CAPABILITY=61", nil, 0, "warning  cuda:0", "6.1, 8.0 GiB; float32; the CUDA \z
    backend has no kernels for it\n")
  expect_report("the last devices without kernels", "FAKE_CAPABILITY=75", nil, 0, "warning  cuda:0",
    "capability 8.0 (2020) or later")
  expect_report("the first devices with kernels", "FAKE_CAPABILITY=80", nil, 0, "ok       cuda:0",
    "float16 on Tensor Cores, bfloat16 and TF32 on Tensor Cores\n")
  expect_report("the driver is of the same CUDA, and older", "FAKE_DRIVER=12020 FAKE_RUNTIME=12080 FAKE_CUBLAS=120801",
    nil, 0, "ok       CUDA runtime     12.8\n")
  expect_report("no cuBLAS", "", "libcublasLt.so.12", 1, "error    cuBLASLt         not found: no products of \z
    matrices on the GPU\n", "cure: install libcublas")
  expect_report("no cuDNN", "", "libcudnn.so.9", 1, "error    cuDNN            not found: no convolution and \z
    attention on the GPU\n", "cure: install libcudnn9")
  expect_report("libraries that do not say what they are", "FAKE_RUNTIME=0 FAKE_CUBLAS=0 FAKE_CUDNN=0", nil, 1,
    "error    CUDA runtime     not found",
    "error    cuBLASLt         not found", "error    cuDNN            not found")
  expect_report("no plugin", "", nil, 0, "warning  CUDA backend     gibbous_cuda.so is not installed: everything \z
    runs on the CPU\n", "cure: build it")
  expect_report("a plugin that is none", "GIBBOUS_PLUGINS=" .. plugins("echo none >"), nil, 1,
    "error    CUDA backend     gibbous_cuda.so does not start: ",
    "file too short", "of version " .. gb.version)
  expect_report("a plugin that is no backend", "GIBBOUS_PLUGINS=" .. plugins(("ln -s '%s'"):format(fake)), nil, 1,
    "does not start: ", "gb_backend_open")
  expect_report("no driver", "", "libcuda.so.1", 0, "ok       CUDA driver      none: everything runs on the CPU\n")
end)

-- Is oneDNN in the process, before and after a convolution that it is for; what an audit of it ends with; a sum of it.
local program = [[
local gb = require "gibbous"
local function there() return io.open("/proc/self/maps"):read("a"):find("libdnnl", 1, true) ~= nil end
local before, conv, x = there(), gb.nn.Conv2d(32, 32, 5, { padding = 2 }), gb.randn(4, 32, 64, 64)
local report = tostring(gb.amp.audit(conv, x, { print = false }))
print(before, there(), report:match("convolutions (.-)\n"), (gb.nn.functional.conv2d(gb.ones(4, 32, 64, 64),
  gb.ones(32, 32, 5, 5)):sum():item()))
]]

if onednn and onednn ~= "" then
  describe("oneDNN, which is opened when it is wanted", function()
    local name = os.tmpname()
    local file = assert(io.open(name, "w"))
    file:write(program)
    file:close()
    local sum = 4 * 32 * 60 * 60 * 32 * 25.0
    it("is not in a program that has not convolved", function()
      expect((output(name, ""))):to_be(("false\ttrue\tnil\t%s\nstatus 0\n"):format(sum))
    end)
    it("is done without where it is not there, which an audit says", function()
      local text = output(name, "", onednn)
      expect(text:sub(1, 12)):to_be("false\tfalse\t")
      expect(text:find("about three times as slow as with oneDNN: .*" .. onednn:gsub("%p", "%%%0") ..
        ": file too short\t" .. ("%s\nstatus 0\n"):format(sum):gsub("%p", "%%%0"))):to_be_truthy()
    end)
    os.remove(name)
  end)
  expect_report("no oneDNN", "", onednn, 0, "warning  oneDNN ", onednn .. ": file too short; convolutions take about",
    "cure: install libdnnl" .. onednn:match("%d+$") .. "\n")
  expect_report("oneDNN is there", "", nil, 0, "ok       oneDNN           version " .. onednn:match("%d+$") .. ".")
end

for _, folder in ipairs(made) do os.execute("rm -r " .. folder) end
gb.test.finish()

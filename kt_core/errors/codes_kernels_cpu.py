"""KT500 and KT505 to KT529: the CPU kernels."""

from __future__ import annotations

from kt_core.errors.codes import Code

CODES = (
    Code(
        "KT500",
        "The native library of a kernel cannot be loaded",
        "The distribution is installed, but its compiled part is missing, damaged, built for another "
        "processor, or left over from another version. Nothing is computed in its place, since the "
        "result would be slower without a word. Reinstall the distribution with the line shown; "
        "from a checkout, build it again with pip install ./kt_ops_cpu.",
        "KT500 the native library of kt-ops-cpu cannot be loaded\n"
        "  ImportError: _native.abi3.so: file too short\n"
        "  help: pip install --force-reinstall kt-ops-cpu",
    ),
    Code(
        "KT505",
        "Activations that a kernel cannot read",
        "A kernel was called with activations of the wrong width, on another device, sparse, or of a "
        "dtype that it does not take (float32, float16 and bfloat16 are taken). Operators of kt move "
        "activations to their kernel's device; code of one's own must do the same.",
        "KT505 q_proj: activations are float64; it takes float32, float16, bfloat16",
    ),
    Code(
        "KT506",
        "The CPU variant asked for cannot be used",
        "KT_CPU_ISA names the instruction set that the CPU kernels use: c, avx2, avx512 or amx. It can "
        "lower what is chosen, to compare results or to avoid a faulty unit, but never raise it above "
        "what the processor has and the operating system has switched on: that would end in an "
        "illegal instruction. Unset it, or name one of those listed.",
        "KT506 KT_CPU_ISA=amx: this CPU or operating system cannot run it\n"
        "  usable here: c, avx2, avx512\n"
        "  help: KT_CPU_ISA=avx512, or unset it",
    ),
    Code(
        "KT507",
        "A bad number of threads or list of CPUs",
        "The number of CPU threads, from KT_CPU_THREADS or the option threads of a rule, must lie in "
        "1 to 1024. Without it kt takes the least of the CPUs the process may use, its control "
        "group's quota and the physical cores. KT_CPU_TOPOLOGY, where set, lists the CPUs of each "
        "NUMA node, nodes separated by semicolons.",
        "KT507 KT_CPU_THREADS='abc' is not a number from 1 to 1024\n"
        "  help: unset KT_CPU_THREADS: 16 threads suit this machine",
    ),
    Code(
        "KT508",
        "No memory for a kernel's scratch space",
        "The CPU kernels lay activations out in scratch memory that all layers share; the system "
        "would not give it. The kernel stays usable. Free memory, or send fewer tokens in one call.",
        "KT508 mlp.experts: scratch memory could not be allocated\n"
        "  help: send fewer tokens at once, or free memory",
    ),
    Code(
        "KT509",
        "A worker thread cannot be started",
        "The system refused to start the threads of the CPU kernels, usually because of a limit on "
        "processes. Raise the limit or ask for fewer threads; the next call tries again.",
        "KT509 mlp.experts: a worker thread could not be started\n"
        "  help: set KT_CPU_THREADS lower, or raise the limit on processes (ulimit -u)",
    ),
    Code(
        "KT510",
        "A computation was cancelled",
        "kt_ops_cpu.pool.cancel() was called from another thread while a kernel ran. The kernel "
        "stopped at its next task and its result was dropped. The next call runs as usual.",
        "KT510 mlp.experts: cancelled",
    ),
    Code(
        "KT511",
        "Ids or weights of the router have the wrong form",
        "Experts are called with ids and weights of the shape (tokens, choices per token), the ids "
        "as int64 or int32 and the weights floating, both where the kernel computes. A router of "
        "another model family, or code of one's own, passed something else.",
        "KT511 mlp.experts needs int64 ids and floating weights of (tokens, k) on cpu\n"
        "  activations [4, 2048]\n"
        "  ids [4, 8] torch.float32 on cpu\n"
        "  weights [4, 8] torch.float32 on cpu",
    ),
    Code(
        "KT512",
        "The native library refused a call",
        "An argument reached the compiled code that its own checks refuse, although the checks before "
        "it let it pass. That is a fault of kt: please report it with the whole message.",
        "KT512 mlp.experts: a pointer, a count or a stride is not valid",
    ),
    Code(
        "KT513",
        "A kernel does not serve this type or activation",
        "The kernel computes on packed weights and does not know this stored type, or the experts use "
        "an activation function that it does not have. The kernels named kt_core.torch_linear and "
        "kt_core.torch_experts take every type that can be dequantised.",
        "KT513 lm_head: output.weight is stored as TQ1_0, which kt-ops-cpu cannot compute on\n"
        "  help: name kt_core.torch_linear or kt_core.torch_experts, which dequantise",
    ),
    Code(
        "KT514",
        "Two rules ask for different numbers of CPU threads",
        "The CPU kernels of a process share one pool of threads, so two rules with different threads "
        "options cannot both be right. Give the same number in both, or none, and use KT_CPU_THREADS.",
        "KT514 two rules ask for different numbers of CPU threads: 8 and 16\n"
        "  the pool of threads is one per process\n"
        "  help: give the same number in both, or use KT_CPU_THREADS",
    ),
)

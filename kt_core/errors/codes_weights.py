"""KT400 to KT459: weight files."""

from __future__ import annotations

from kt_core.errors.codes import Code

CODES = (
    Code(
        "KT401",
        "path cannot be opened",
        "There is nothing at the path, or the system refuses to open it. The fact line names the "
        "part of a missing path that does exist, since the usual cause is one misspelt component.",
        "/models/smolm2.gguf: KT401 no such file or folder\n  the folder that exists: /models",
    ),
    Code(
        "KT402",
        "not a regular file",
        "Weights are read from regular files only. A FIFO or a device could block for ever, so it "
        "is refused before it is opened.",
        "/dev/random: KT402 is a character device, not a file of weights",
    ),
    Code(
        "KT403",
        "no weights in the folder",
        "A folder is accepted if it holds exactly one model; its sub-folders are not searched. If "
        "one of them holds weights, the message names it.",
        "/models: KT403 holds no GGUF or safetensors file itself, but 1 folders below it do\n"
        "  folder: /models/smollm2\n  help: kt inspect /models/smollm2",
    ),
    Code(
        "KT404",
        "several models in the folder",
        "kt does not guess which of several models is meant, and never merges unrelated files. "
        "Give the path of the file; any part of a split set stands for the whole set.",
        "/models: KT404 holds 2 gguf models; name one of them\n  model: a.gguf\n  model: b.gguf",
    ),
    Code(
        "KT405",
        "Git LFS pointer",
        "The file is the small text that Git LFS keeps in place of a large file. The repository "
        "was cloned without its large files; fetch them.",
        "model.gguf: KT405 is a Git LFS pointer; the model itself was not downloaded\n"
        "  help: git lfs pull",
    ),
    Code(
        "KT406",
        "format that kt does not open",
        "Pickles (*.bin, *.pt, *.pth) can run code when they are opened, so kt never opens them; "
        "formats from before GGUF are not supported either. Convert the model to safetensors or "
        "GGUF.",
        "pytorch_model.bin: KT406 is a ZIP archive or a torch pickle",
    ),
    Code(
        "KT407",
        "not a weight file",
        "The first bytes are neither GGUF nor safetensors, or not the format that was asked for "
        "with format=. The message says what the file is where that can be told; a web page "
        "usually means that a download failed.",
        "model.gguf: KT407 is a web page, probably an error message saved in place of the download",
    ),
    Code(
        "KT408",
        "header cut off",
        "The file ends inside its header. The download stopped early, or the file is still being "
        "written.",
        "model.gguf: KT408 the header is cut off: the file ends at byte 20",
    ),
    Code(
        "KT409",
        "GGUF version or byte order",
        "kt reads GGUF versions 2 and 3 in little-endian order. Version 1 files must be converted "
        "again; big-endian files can be converted with the gguf package's gguf-convert-endian.",
        "model.gguf: KT409 is GGUF version 1; kt reads versions 2 and 3",
    ),
    Code(
        "KT410",
        "tensor is missing",
        "A tensor that the model needs is not in the file. The facts give the wanted name and the "
        "nearest names that are present: a different spelling points to a converter of another "
        "age, a whole missing layer to an incomplete set of files.",
        'model.gguf: KT410 has no tensor "blk.0.attn_q.weigth"\n'
        "  nearest of 272 present: blk.0.attn_q.weight, blk.0.attn_k.weight, blk.0.attn_v.weight",
    ),
    Code(
        "KT411",
        "a number claims more than the file holds",
        "A count or length in the header needs more bytes than are left in the file. It is "
        "refused before anything is allocated. The file is damaged, cut off or hostile.",
        "model.gguf: KT411 claims 9223372036854775808 key/value pairs, which need at least "
        "129127208515966861312 bytes; 1000 are left in the file",
    ),
    Code(
        "KT412",
        "bad name",
        "Keys have 1 to 65,535 bytes, GGUF tensor names 1 to 63; both are UTF-8 without control "
        "characters. Escape sequences in a name could otherwise steer the terminal that prints "
        "it, which is why messages show them escaped.",
        'model.gguf: KT412 the key "a\\x1b[2J" holds control characters',
    ),
    Code(
        "KT413",
        "unknown metadata type",
        "A metadata value has a type number that GGUF does not define, or is an array of arrays, "
        "which no reader supports.",
        'model.gguf: KT413 the value of "general.name" has the type 99',
    ),
    Code(
        "KT414",
        "bad alignment",
        "general.alignment must be a uint32 and a power of two up to 16 MiB; every tensor's "
        "position is computed from it.",
        "model.gguf: KT414 general.alignment is 13; it must be a power of two up to 16777216",
    ),
    Code(
        "KT415",
        "name occurs twice",
        "Two keys, or two tensors of one file or set, have the same name. Readers that let the "
        "last one win would load different models from the same file.",
        'model.gguf: KT415 the tensor "output.weight" occurs twice',
    ),
    Code(
        "KT416",
        "impossible shape",
        "A tensor has more than four dimensions (GGUF), a negative or absurdly large one, or rows "
        "that are no whole number of its type's blocks.",
        'model.gguf: KT416 the tensor "blk.0.ffn_up.weight" has rows of 100 values; Q4_K stores '
        "blocks of 256",
    ),
    Code(
        "KT417",
        "unknown tensor type",
        "The number or name of a tensor's type is not one kt knows: it was removed from GGML, is "
        "newer than this kt, or the header is damaged.",
        'model.gguf: KT417 the tensor "output.weight" has the type 4, which kt does not know',
    ),
    Code(
        "KT418",
        "tensor in the wrong place",
        "Tensors must follow each other in the order of the header, each at the next aligned "
        "position, without gaps or overlaps. Anything else would let one tensor read another's "
        "bytes.",
        'model.gguf: KT418 the data of the tensor "output.weight" lies inside an earlier tensor',
    ),
    Code(
        "KT419",
        "data cut off",
        "The header is complete, but the file ends before the last tensor does. The download "
        "stopped early; it is found at opening, not in the middle of loading.",
        'model.gguf: KT419 the file is cut off: the tensor "output.weight" ends at byte 98362432, '
        "the file at 98000000",
    ),
    Code(
        "KT420",
        "type cannot be dequantised",
        "The tensor's blocks can be read, but neither kt nor the installed gguf package has the "
        "formula for their values. Use a file in another quantisation, or a newer gguf.",
        'KT420 the tensor "blk.0.ffn_up.weight" is stored as Q8_K and cannot be dequantised: '
        "its formula is not known",
    ),
    Code(
        "KT421",
        "bytes after the last tensor",
        "The file is longer than its header accounts for. The model is complete, so this is a "
        "warning (an error with strict); a file that is two formats at once is a known trick.",
        "model.gguf: KT421 warning: 300 bytes follow the last tensor and are not used",
    ),
    Code(
        "KT422",
        "part of a set is missing",
        "The model is split over several files and some are absent. Every part must lie in the "
        "same folder under its published name.",
        "m-00001-of-00003.gguf: KT422 is part 1 of 3; 1 of the others are missing\n"
        "  missing: m-00002-of-00003.gguf",
    ),
    Code(
        "KT423",
        "part does not fit its set",
        "What a part says about itself (split.no, split.count, split.tensors.count) disagrees with "
        "its name or with the other parts: it was renamed, comes from another model, or parts "
        "were joined with cat. Joining needs llama-gguf-split --merge.",
        "joined.gguf: KT423 says it is part 1 of 3, but its name says otherwise",
    ),
    Code(
        "KT424",
        "part outside the folder",
        "A part of a set is named by a path, or is a symbolic link that leads outside the folder. "
        "A model may only cause files beside it to be read; links inside the Hugging Face cache "
        "are accepted.",
        'model.safetensors.index.json: KT424 names the part "../secret", which is not a plain '
        "file name",
    ),
    Code(
        "KT425",
        "files joined with cat",
        "A second GGUF header begins after the last tensor. Joining the parts of a set with cat "
        "loses all but the first; use the parts as they are, or llama-gguf-split --merge.",
        "joined.gguf: KT425 another GGUF file begins after the last tensor",
    ),
    Code(
        "KT426",
        "file changed while in use",
        "Size, modification time or inode differ from when the header was read, so its offsets "
        "can no longer be trusted. Mapped tensors of a file that another process cuts short can "
        "end the process with SIGBUS; open it with mmap=False where that must not happen.",
        "model.gguf: KT426 changed since it was opened\n  changed: size, modification time",
    ),
    Code(
        "KT427",
        "file was closed",
        "A tensor or a metadata value was asked for after the source was closed. Views that were "
        "handed out before stay valid.",
        "model.gguf: KT427 was closed before this was read from it",
    ),
    Code(
        "KT428",
        "reading failed",
        "The system reported an error while the file was examined, read or mapped: a failing "
        "disk, a lost network mount, a limit on memory.",
        "model.gguf: KT428 reading failed: Input/output error",
    ),
    Code(
        "KT429",
        "text is not UTF-8",
        "A metadata text that was asked for is not UTF-8. The rest of the file can be used.",
        'model.gguf: KT429 the text in "general.name" is not UTF-8',
    ),
    Code(
        "KT440",
        "files that were ignored",
        "A note: the folder holds weight files that are not part of the model that was opened. "
        "GGUF wins over safetensors; name the file or give format= for another choice.",
        "/models/a: KT440 note: a.gguf is loaded; 1 other weight files are ignored\n"
        "  ignored: adapter_model.safetensors",
    ),
    Code(
        "KT441",
        "unknown format",
        "format= says which files of a folder are meant; it takes gguf or safetensors.",
        "model.gguf: KT441 format='ggml' is none of gguf, safetensors",
    ),
    Code(
        "KT442",
        "metadata key not in the file",
        "kt inspect was asked for a metadata key that the file does not have; the facts list the "
        "nearest ones.",
        'model.gguf: KT442 has no metadata key "general.nme"',
    ),
    Code(
        "KT450",
        "impossible safetensors header length",
        "A safetensors file begins with the length of its header: 2 to 100,000,000 bytes, and no "
        "more than the file holds.",
        "model.safetensors: KT450 claims a header of 9223372036854775808 bytes; at most "
        "100000000 are allowed",
    ),
    Code(
        "KT451",
        "safetensors header is not acceptable JSON",
        "The header must be UTF-8 JSON, begin with '{', have no duplicate keys and no NaN, and "
        "__metadata__ must map texts to texts.",
        'model.safetensors: KT451 the header has the key "a" twice in one object',
    ),
    Code(
        "KT452",
        "bad safetensors entry",
        "A tensor's entry lacks dtype, shape or data_offsets, or they contradict each other.",
        'model.safetensors: KT452 the tensor "a" needs 8 bytes for [2] F32, but takes 4 of the '
        "file",
    ),
    Code(
        "KT453",
        "bytes after a safetensors file's data",
        "The format requires the tensors to cover the file; extra bytes mean damage or a file "
        "that is two formats at once.",
        "model.safetensors: KT453 1 bytes follow the last tensor; the format allows none",
    ),
    Code(
        "KT454",
        "bad safetensors index",
        "model.safetensors.index.json is not readable, or lists tensors that the parts do not "
        "hold. Index and parts come from different revisions, or a part is damaged.",
        "model.safetensors.index.json: KT454 the index lists 1 tensors that their parts do not "
        "hold",
    ),
    Code(
        "KT455",
        "tensors outside the index",
        "A warning: the parts hold tensors that the index does not list; they are not used.",
        "model.safetensors.index.json: KT455 warning: 2 tensors of its parts are not in the index "
        "and are not used",
    ),
    Code(
        "KT456",
        "a GPTQ or AWQ checkpoint in a form kt cannot read",
        "kt reads 4-bit GPTQ and AWQ linears in safetensors, in groups of a multiple of 32, as Q4_1. "
        "Other widths have no kernel, rows reordered by activation (desc_act, act_order) would need "
        "their activations gathered, and tensors of other shapes cannot be told apart safely.",
        "KT456 ./model holds a GPTQ or AWQ checkpoint that kt cannot read\n"
        "  rows are reordered by activation (desc_act)\n"
        "  help: use one with 4 bits, groups of 32, 64 or 128 and desc_act false, or a GGUF file",
    ),
)

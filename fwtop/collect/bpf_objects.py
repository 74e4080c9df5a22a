"""More of bpf(2): what is kept by a name in bpffs, changed in place, or asked about.

Source: include/uapi/linux/bpf.h (union bpf_attr) and bpf(2).
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

from fwtop.collect.bpf import call

MAP_HASH, MAP_LRU_HASH, MAP_ARRAY_OF_MAPS = 1, 9, 12
F_NO_PREALLOC = 1 << 0
_F_RDONLY = 1 << 3
_MAP_LOOKUP = 1
_MAP_UPDATE, _MAP_DELETE, _OBJ_PIN, _OBJ_GET = 2, 3, 6, 7
_PROG_GET_FD_BY_ID, _MAP_GET_FD_BY_ID, _OBJ_GET_INFO = 13, 14, 15
_MAP_UPDATE_BATCH, _LINK_UPDATE, _LINK_DETACH = 26, 29, 34
_INFO_BYTES = 256
_PROGRAM_NAME_AT = 64  # struct bpf_prog_info.name
_INTERFACE_AT = 16  # struct bpf_link_info.xdp.ifindex, .tcx.ifindex
_MAP_ID_AT, _VALUE_SIZE_AT = 4, 12  # struct bpf_map_info.id, .value_size


def pin(descriptor: int, path: Path) -> None:
    """Give a map, program or link a name in bpffs: it then outlives every process. Raises OSError."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    call(_OBJ_PIN, struct.pack("<QII", ctypes.addressof(name), descriptor, 0))


def open_pin(path: Path) -> int:
    """Open what was pinned there; raises OSError."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    return call(_OBJ_GET, struct.pack("<QII", ctypes.addressof(name), 0, 0))


def create_map_of_maps(name: str, entries: int, inner: int) -> int:
    """Create an array of maps that are made like `inner`; raises OSError."""
    attributes = struct.pack("<IIIIIII", MAP_ARRAY_OF_MAPS, 4, 4, entries, 0, inner, 0)
    return call(0, attributes + name.encode()[:15].ljust(16, b"\0"))


def set_element(descriptor: int, key: bytes, value: bytes) -> None:
    """Put one element into a map; raises OSError."""
    held_key, held_value = _held(key), _held(value)
    where = struct.pack("<IxxxxQQQ", descriptor, ctypes.addressof(held_key), ctypes.addressof(held_value), 0)
    call(_MAP_UPDATE, where)


def get_element(descriptor: int, key: bytes, value_bytes: int) -> bytes:
    """Read one element of a map, for which a descriptor for reading only is enough; raises OSError."""
    held_key, held_value = _held(key), ctypes.create_string_buffer(value_bytes)
    where = struct.pack("<IxxxxQQQ", descriptor, ctypes.addressof(held_key), ctypes.addressof(held_value), 0)
    call(_MAP_LOOKUP, where)
    return held_value.raw


def delete_element(descriptor: int, key: bytes) -> None:
    """Take one element out of a map; raises OSError (ENOENT where there is none)."""
    held = _held(key)
    call(_MAP_DELETE, struct.pack("<IxxxxQ", descriptor, ctypes.addressof(held)))


def set_elements(descriptor: int, keys: bytes, values: bytes, count: int) -> None:
    """Put many elements into a map by one call: keys and values one behind the other. Raises OSError."""
    held_keys, held_values = _held(keys), _held(values)
    # in_batch, out_batch, keys, values, count, map_fd, elem_flags, flags
    addresses = (ctypes.addressof(held_keys), ctypes.addressof(held_values))
    call(_MAP_UPDATE_BATCH, struct.pack("<QQQQIIQQ", 0, 0, *addresses, count, descriptor, 0, 0))


def update_link(link: int, program: int) -> None:
    """Swap the program of a link for another: every packet meets one of the two. Raises OSError."""
    call(_LINK_UPDATE, struct.pack("<IIII", link, program, 0, 0))


def detach_link(link: int) -> None:
    """Detach a link, whoever else holds it; raises OSError."""
    call(_LINK_DETACH, struct.pack("<I", link))


def link_interface(link: int) -> int:
    """Return the interface of an XDP or tcx link, 0 when it is gone; raises OSError."""
    return int(struct.unpack_from("<I", _info(link), _INTERFACE_AT)[0])


def value_size(descriptor: int) -> int:
    """Return the bytes of a map's values; raises OSError."""
    return int(struct.unpack_from("<I", _info(descriptor), _VALUE_SIZE_AT)[0])


def read_only(descriptor: int) -> int:
    """Open a map again for reading only: for a process that may look but not change. Raises OSError."""
    number = struct.unpack_from("<I", _info(descriptor), _MAP_ID_AT)[0]
    return call(_MAP_GET_FD_BY_ID, struct.pack("<III", number, 0, _F_RDONLY))


def program_name(number: int) -> str:
    """Return the name of a loaded program; raises OSError when it is gone."""
    descriptor = call(_PROG_GET_FD_BY_ID, struct.pack("<I", number))
    try:
        name = _info(descriptor)[_PROGRAM_NAME_AT : _PROGRAM_NAME_AT + 16]
    finally:
        os.close(descriptor)
    return name.split(b"\0")[0].decode("ascii", "replace")


def _info(descriptor: int) -> bytes:
    buffer = ctypes.create_string_buffer(_INFO_BYTES)
    call(_OBJ_GET_INFO, struct.pack("<IIQ", descriptor, _INFO_BYTES, ctypes.addressof(buffer)))
    return buffer.raw


def _held(data: bytes) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * len(data)).from_buffer_copy(data)

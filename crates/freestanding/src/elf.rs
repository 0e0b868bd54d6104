//! Symbol tables of objects that lie in memory, mapped by the kernel or by a dynamic linker
//! (System V ABI, chapter 5; <https://refspecs.linuxfoundation.org/elf/gabi4+/ch5.dynsym.html>).
//!
//! No data here comes from a peer: the objects are the program's own, already relocated. With a
//! malformed object the program would not have started.

use core::ffi::{CStr, c_char, c_void};

/// An entry of a dynamic section.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Dynamic {
    tag: usize,
    value: usize,
}

/// A program header of a 64-bit object.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProgramHeader {
    /// `PT_*`.
    pub kind: u32,
    /// `PF_*`.
    pub flags: u32,
    /// Offset in the file.
    pub offset: usize,
    /// Offset in memory, relative to the object's base.
    pub address: usize,
    physical: usize,
    /// Bytes in the file.
    pub file_bytes: usize,
    /// Bytes in memory.
    pub memory_bytes: usize,
    align: usize,
}

/// A symbol.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

/// `PT_DYNAMIC`.
pub const PT_DYNAMIC: u32 = 2;
/// `PT_LOAD`.
pub const PT_LOAD: u32 = 1;
const DT_HASH: usize = 4;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_DEBUG: usize = 21;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const DT_VERSYM: usize = 0x6fff_fff0;
const STT_IFUNC: u8 = 10;
/// The symbol is not the default version of its name (`VERSYM_HIDDEN`).
const VERSION_HIDDEN: u16 = 0x8000;

/// The hash of a name in `DT_GNU_HASH`.
pub const fn gnu_hash(name: &[u8]) -> u32 {
    let mut hash = 5381u32;
    let mut at = 0;
    while at < name.len() {
        hash = hash.wrapping_mul(33).wrapping_add(name[at] as u32);
        at += 1;
    }
    hash
}

/// The hash of a name in `DT_HASH`.
fn system_v_hash(name: &[u8]) -> u32 {
    name.iter().fold(0u32, |hash, &byte| {
        let hash = (hash << 4).wrapping_add(byte.into());
        let high = hash & 0xf000_0000;
        (hash ^ high >> 24) & !high
    })
}

/// A name to look up, with its precomputed hash.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    text: &'static CStr,
    hash: u32,
}

impl Name {
    /// The symbol name `text`, which ends with a NUL.
    ///
    /// # Panics
    /// At compile time, when `text` does not end with a NUL or contains another one.
    pub const fn of(text: &'static str) -> Name {
        match CStr::from_bytes_with_nul(text.as_bytes()) {
            Ok(text) => Name::new(text),
            Err(_) => panic!("a name that ends with a NUL"),
        }
    }

    /// Of this symbol.
    pub const fn new(text: &'static CStr) -> Name {
        Name {
            text,
            hash: gnu_hash(text.to_bytes()),
        }
    }
}

/// The value of `tag` in a dynamic section.
///
/// # Safety
/// `dynamic` is a dynamic section, which ends with `DT_NULL`.
unsafe fn value_of(mut dynamic: *const Dynamic, tag: usize) -> Option<usize> {
    // SAFETY: the caller's promise.
    unsafe {
        while (*dynamic).tag != 0 {
            if (*dynamic).tag == tag {
                return Some((*dynamic).value);
            }
            dynamic = dynamic.add(1);
        }
    }
    None
}

/// The dynamic linker's list of objects, whose address it stores in the program's dynamic section.
///
/// # Safety
/// `dynamic` is a dynamic section.
pub(crate) unsafe fn debug_of(dynamic: *const Dynamic) -> Option<usize> {
    // SAFETY: the caller's promise.
    unsafe { value_of(dynamic, DT_DEBUG) }.filter(|&at| at != 0)
}

/// The symbol table of an object in memory.
#[derive(Clone, Copy, Debug)]
pub struct Symbols {
    base: usize,
    symbols: *const Symbol,
    strings: *const c_char,
    gnu: *const u32,
    system_v: *const u32,
    versions: *const u16,
}

impl Symbols {
    /// The symbols of the object at `base` with this dynamic section; `None` when it has none.
    ///
    /// # Safety
    /// The object is mapped and stays so.
    #[unsafe(link_section = ".text.startup")]
    pub unsafe fn of(base: usize, dynamic: *const Dynamic) -> Option<Symbols> {
        if dynamic.is_null() {
            return None;
        }
        // glibc adds the base to these addresses in place, musl and the kernel's vDSO do not.
        let place = |tag| {
            // SAFETY: the caller's promise.
            let value = unsafe { value_of(dynamic, tag) }?;
            Some(if value < base { value + base } else { value })
        };
        let symbols = Symbols {
            base,
            symbols: place(DT_SYMTAB)? as *const Symbol,
            strings: place(DT_STRTAB)? as *const c_char,
            gnu: place(DT_GNU_HASH).unwrap_or(0) as *const u32,
            system_v: place(DT_HASH).unwrap_or(0) as *const u32,
            versions: place(DT_VERSYM).unwrap_or(0) as *const u16,
        };
        (!symbols.gnu.is_null() || !symbols.system_v.is_null()).then_some(symbols)
    }

    /// The symbols of an object whose ELF header and segments are in memory at the file's offsets:
    /// the kernel's vDSO and the dynamic linker.
    ///
    /// # Safety
    /// An ELF object is mapped at `header`.
    pub unsafe fn at_header(header: *const u8) -> Option<Symbols> {
        // SAFETY: the caller's promise; the offsets are those of `Elf64_Ehdr`.
        let (headers, count) = unsafe {
            let table = header.add(32).cast::<usize>().read();
            (
                header.add(table).cast(),
                header.add(56).cast::<u16>().read(),
            )
        };
        // SAFETY: as above.
        unsafe { Symbols::by_headers(headers, count.into(), header as usize) }
    }

    /// The symbols of an object with program headers at `headers` and its first byte at `first`.
    ///
    /// # Safety
    /// An object is mapped with these headers.
    unsafe fn by_headers(
        headers: *const ProgramHeader,
        count: usize,
        first: usize,
    ) -> Option<Symbols> {
        // SAFETY: the caller's promise.
        let headers = unsafe { core::slice::from_raw_parts(headers, count) };
        let load = headers.iter().find(|header| header.kind == PT_LOAD)?;
        let base = first.wrapping_sub(load.address.wrapping_sub(load.offset));
        let dynamic = headers.iter().find(|header| header.kind == PT_DYNAMIC)?;
        // SAFETY: as above.
        unsafe { Symbols::of(base, (base.wrapping_add(dynamic.address)) as *const Dynamic) }
    }

    /// The address of a symbol: of its default version, otherwise of any version.
    #[unsafe(link_section = ".text.startup")]
    pub fn find(&self, name: &Name) -> Option<*mut c_void> {
        let found = match self.gnu.is_null() {
            // SAFETY: the tables of a mapped object, by the promise to `of`.
            false => unsafe { self.find_by_gnu_hash(name) },
            // SAFETY: as above.
            true => unsafe { self.find_by_system_v_hash(name) },
        };
        // SAFETY: as above.
        found.map(|index| unsafe { self.address(index) })
    }

    /// # Safety
    /// The object is mapped.
    unsafe fn find_by_gnu_hash(&self, name: &Name) -> Option<usize> {
        // SAFETY: the layout of DT_GNU_HASH: four words, the Bloom filter, the buckets, the chains.
        unsafe {
            let [buckets, first, filter_words, shift] = self.gnu.cast::<[u32; 4]>().read();
            let filter = self.gnu.add(4).cast::<usize>();
            let word = filter
                .add((name.hash as usize / 64) % filter_words as usize)
                .read();
            let bits = 1usize << (name.hash % 64) | 1usize << ((name.hash >> shift) % 64);
            if word & bits != bits || buckets == 0 {
                return None;
            }
            let bucket = filter.add(filter_words as usize).cast::<u32>();
            let chain = bucket.add(buckets as usize);
            let mut index = bucket.add((name.hash % buckets) as usize).read();
            if index < first {
                return None;
            }
            let mut older = None;
            loop {
                let hash = chain.add((index - first) as usize).read();
                if hash | 1 == name.hash | 1 {
                    match self.fits(index as usize, name) {
                        Some(true) => return Some(index as usize),
                        Some(false) => older = older.or(Some(index as usize)),
                        None => {}
                    }
                }
                if hash & 1 != 0 {
                    return older;
                }
                index += 1;
            }
        }
    }

    /// # Safety
    /// The object is mapped.
    unsafe fn find_by_system_v_hash(&self, name: &Name) -> Option<usize> {
        let hash = system_v_hash(name.text.to_bytes());
        // SAFETY: the layout of DT_HASH: two counts, the buckets, the chains.
        unsafe {
            let buckets = self.system_v.read();
            if buckets == 0 {
                return None;
            }
            let bucket = self.system_v.add(2);
            let chain = bucket.add(buckets as usize);
            let mut index = bucket.add((hash % buckets) as usize).read();
            let mut older = None;
            while index != 0 {
                match self.fits(index as usize, name) {
                    Some(true) => return Some(index as usize),
                    Some(false) => older = older.or(Some(index as usize)),
                    None => {}
                }
                index = chain.add(index as usize).read();
            }
            older
        }
    }

    /// Whether a symbol is a definition of `name`: `true` for its default version, `false` for
    /// another.
    ///
    /// # Safety
    /// The object is mapped and has this symbol.
    unsafe fn fits(&self, index: usize, name: &Name) -> Option<bool> {
        const STT_TLS: u8 = 6;
        const STT_FILE: u8 = 4;
        const STT_SECTION: u8 = 3;
        // SAFETY: the caller's promise.
        unsafe {
            let symbol = self.symbols.add(index).read();
            let is_place = !matches!(symbol.info & 0xf, STT_TLS | STT_FILE | STT_SECTION);
            let is_global = symbol.info >> 4 != 0;
            if symbol.section == 0 || symbol.value == 0 || !is_place || !is_global {
                return None;
            }
            let text = CStr::from_ptr(self.strings.add(symbol.name as usize));
            if text.to_bytes() != name.text.to_bytes() {
                return None;
            }
            let is_default =
                self.versions.is_null() || self.versions.add(index).read() & VERSION_HIDDEN == 0;
            Some(is_default)
        }
    }

    /// # Safety
    /// The object is mapped, relocated, and has this symbol.
    unsafe fn address(&self, index: usize) -> *mut c_void {
        // SAFETY: the caller's promise; a symbol of this type (IFUNC) is a function without
        // arguments that returns the address of the implementation for this processor.
        unsafe {
            let symbol = self.symbols.add(index).read();
            let at = self.base.wrapping_add(symbol.value) as *mut c_void;
            if symbol.info & 0xf != STT_IFUNC {
                return at;
            }
            core::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_void>(at)()
        }
    }
}

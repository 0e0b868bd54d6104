//! A program or a library in this process's memory.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ops::Range;
use core::slice;

use toehold_freestanding::elf::ProgramHeader;
use toehold_freestanding::objects;
use toehold_sites::elf::{PF_X, PT_LOAD, PT_NOTE, shows_go};
use toehold_sockets::system::real;

/// Its place, as reported by the kernel or the dynamic linker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    base: usize,
    headers: &'static [ProgramHeader],
    /// Its path; null for the program.
    path: *const c_char,
}

impl Object {
    /// The program.
    #[unsafe(link_section = ".text.startup")]
    pub(super) fn program() -> Object {
        Object {
            base: objects::program_base(),
            headers: objects::program_headers(),
            path: core::ptr::null(),
        }
    }

    /// The library of Go that contains this code. The dynamic linker keeps it loaded: Go's linker
    /// asks for that.
    pub(super) fn library_of_go(code: usize) -> Option<Object> {
        let mut search = Search { code, found: None };
        // SAFETY: the function gets the search, which outlives the call.
        unsafe { real::dl_iterate_phdr(Search::look, (&raw mut search).cast()) };
        search.found
    }

    /// True when Go's linker made it.
    #[unsafe(link_section = ".text.startup")]
    pub(super) fn is_go(&self) -> bool {
        let mut headers = self.headers.iter();
        headers.any(|header| shows_go(header.kind, header.flags, self.in_memory(header)))
    }

    /// Its segments of code.
    pub(super) fn codes(self) -> impl Iterator<Item = &'static [u8]> {
        self.loaded()
            .filter(|header| header.flags & PF_X != 0)
            .map(move |header| self.in_memory(header))
    }

    /// From its first byte to its last.
    pub(super) fn span(self) -> Option<Range<usize>> {
        let places = self.loaded().map(|header| {
            let start = self.base.wrapping_add(header.address);
            start..start.wrapping_add(header.memory_bytes)
        });
        places.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
    }

    /// The name of its file.
    pub(super) fn name(&self) -> &'static [u8] {
        if self.path.is_null() {
            return b"";
        }
        // SAFETY: the dynamic linker's string, which stays as long as the library: for ever.
        let path = unsafe { CStr::from_ptr(self.path) }.to_bytes();
        path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
    }

    fn loaded(self) -> impl Iterator<Item = &'static ProgramHeader> {
        let headers = self.headers.iter();
        headers.filter(|header| header.kind == PT_LOAD)
    }

    /// The bytes of a segment that come from the file.
    fn in_memory(&self, header: &ProgramHeader) -> &'static [u8] {
        const PF_R: u32 = 4;
        let is_mapped = matches!(header.kind, PT_LOAD | PT_NOTE) && header.flags & PF_R != 0;
        if !is_mapped {
            return &[];
        }
        let at = self.base.wrapping_add(header.address) as *const u8;
        // SAFETY: the kernel or the dynamic linker has mapped it. Code and notes do not change; nor
        // do data while somebody looks, because no code of Go has run.
        unsafe { slice::from_raw_parts(at, header.file_bytes) }
    }
}

/// A walk through the objects that are loaded now.
struct Search {
    code: usize,
    found: Option<Object>,
}

impl Search {
    /// Ends the walk at the object that has the code. The object is inspected here, because the
    /// dynamic linker unloads nothing during the walk.
    unsafe extern "C" fn look(
        object: *mut libc::dl_phdr_info,
        _bytes: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: the dynamic linker's description of a loaded object, and what
        // `Object::library_of_go` has given.
        let (info, search) = unsafe { (&*object, &mut *search.cast::<Search>()) };
        let headers = info.dlpi_phdr.cast::<ProgramHeader>();
        if headers.is_null() {
            return 0;
        }
        let object = Object {
            base: info.dlpi_addr as usize,
            // SAFETY: the object's headers.
            headers: unsafe { slice::from_raw_parts(headers, info.dlpi_phnum.into()) },
            path: info.dlpi_name,
        };
        let mut codes = object.codes().map(<[u8]>::as_ptr_range);
        if !codes.any(|code| code.contains(&(search.code as *const u8))) {
            return 0;
        }
        if object.is_go() {
            search.found = Some(object);
        }
        1
    }
}

//! A page of memory that does not come: a thread that touches it sleeps in the kernel, with all
//! locks that it holds there (userfaultfd(2)).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;

use super::becomes_readable;

/// The page comes when this is dropped.
pub(crate) struct StuckPage {
    faults: File,
    page: NonNull<u8>,
}

impl StuckPage {
    /// `None`, with a message, where the kernel lets no process do this.
    pub(crate) fn new() -> Option<StuckPage> {
        match StuckPage::make() {
            Ok(page) => Some(page),
            Err(why) => {
                eprintln!("SKIPPED: no memory that does not come (userfaultfd): {why}");
                None
            }
        }
    }

    fn make() -> io::Result<StuckPage> {
        let check = |done: libc::c_int| match done {
            0.. => Ok(done),
            _ => Err(io::Error::last_os_error()),
        };
        // SAFETY: the descriptor is new; both structures are as userfaultfd(2) describes them, and
        // the page is mapped until this value is dropped.
        unsafe {
            // Without `O_NONBLOCK` it cannot be polled.
            let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
            let made = libc::syscall(libc::SYS_userfaultfd, flags);
            let faults = File::from_raw_fd(check(made as libc::c_int)?);
            let mut version = [UFFD_API, 0, 0];
            check(libc::ioctl(
                faults.as_raw_fd(),
                UFFDIO_API,
                version.as_mut_ptr(),
            ))?;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = libc::mmap(std::ptr::null_mut(), PAGE_BYTES, access, kind, -1, 0);
            if page == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let mut range = [page as u64, PAGE_BYTES as u64, MODE_MISSING, 0];
            check(libc::ioctl(
                faults.as_raw_fd(),
                UFFDIO_REGISTER,
                range.as_mut_ptr(),
            ))?;
            let page = NonNull::new(page.cast()).expect("mapped");
            Ok(StuckPage { faults, page })
        }
    }

    /// Its address.
    pub(crate) fn at(&self) -> usize {
        self.page.as_ptr() as usize
    }

    /// Waits until a thread sleeps because of the page.
    pub(crate) fn wait_for_sleeper(&self) {
        assert!(becomes_readable(&self.faults), "no thread touches the page");
        let mut event = [0; EVENT_BYTES];
        (&mut &self.faults)
            .read_exact(&mut event)
            .expect("an event");
        assert_eq!(event[0], EVENT_PAGE_FAULT);
    }
}

impl Drop for StuckPage {
    fn drop(&mut self) {
        // A page of zeroes, for which the sleeper is woken.
        let mut zeroes = [self.at() as u64, PAGE_BYTES as u64, 0, 0];
        // SAFETY: the structure is as userfaultfd(2) describes it. The page stays mapped, because a
        // thread may still use it.
        unsafe {
            libc::ioctl(
                self.faults.as_raw_fd(),
                UFFDIO_ZEROPAGE,
                zeroes.as_mut_ptr(),
            )
        };
    }
}

const PAGE_BYTES: usize = 4096;
// include/uapi/linux/userfaultfd.h.
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const MODE_MISSING: u64 = 1;
const EVENT_BYTES: usize = 32;
const EVENT_PAGE_FAULT: u8 = 0x12;

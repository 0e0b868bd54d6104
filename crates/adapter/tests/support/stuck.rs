//! A process that stays in the middle of an `execve`, with the kernel's lock `exec_update_lock`:
//! the kernel closes one of its files, and the program that serves the file (FUSE) does not answer.
//! No other process can open its list of mappings meanwhile.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::LONG;
use super::children::close_all_but;

/// The process goes on, and is killed, when this is dropped.
pub(crate) struct StuckProcess {
    pub(crate) pid: libc::pid_t,
    answer: Option<Sender<()>>,
}

impl StuckProcess {
    /// A process of user `uid`. `None`, with a message, where no file system can be served.
    pub(crate) fn new(uid: u32) -> Option<StuckProcess> {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        // SAFETY: cannot fail.
        let device = device.ok().filter(|_| unsafe { libc::geteuid() } == 0);
        let Some(device) = device else {
            eprintln!("SKIPPED: serving a file system (FUSE): needs root and /dev/fuse");
            return None;
        };
        let place = tempfile::NamedTempFile::new().expect("a file");
        let path = place.path().to_str().expect("a plain path");
        let path = std::ffi::CString::new(path).expect("a plain path");
        let (mut is_mounted, mounted) = io::pipe().expect("a pipe");
        // SAFETY: the child makes system calls only, and does not return.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            // SAFETY: as above; the strings are valid.
            unsafe { stay_in_exec(&path, &device, &mounted, uid) };
        }
        drop(mounted);
        is_mounted
            .read_exact(&mut [0])
            .expect("the child has mounted it");
        let (answer, may_answer) = channel();
        let (asked, is_asked) = channel();
        std::thread::spawn(move || serve(device, &asked, &may_answer));
        let stuck = StuckProcess {
            pid,
            answer: Some(answer),
        };
        is_asked.recv_timeout(LONG).expect("it is in its exec");
        Some(stuck)
    }
}

impl Drop for StuckProcess {
    fn drop(&mut self) {
        // SAFETY: our child, not reaped yet.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        self.answer = None;
        // SAFETY: as above.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// Mounts the file in a namespace of this process, opens it, and executes a program.
///
/// # Safety
/// In a forked child only.
unsafe fn stay_in_exec(
    path: &std::ffi::CStr,
    device: &File,
    mounted: &io::PipeWriter,
    uid: u32,
) -> ! {
    let options = format!(
        "fd={},rootmode=100000,user_id=0,group_id=0,allow_other\0",
        device.as_raw_fd()
    );
    close_all_but(&[device.as_fd(), mounted.as_fd()]);
    let none: *const libc::c_char = std::ptr::null();
    // SAFETY: all strings end with a zero byte.
    unsafe {
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let kind = c"fuse".as_ptr();
        let options = options.as_ptr().cast();
        let is_ready = libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                none.cast(),
                c"/".as_ptr(),
                none.cast(),
                private,
                none.cast(),
            ) == 0
            && libc::mount(kind, path.as_ptr(), kind, 0, options) == 0
            && libc::write(mounted.as_raw_fd(), c"m".as_ptr().cast(), 1) == 1;
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        if is_ready && libc::open(path.as_ptr(), flags) >= 0 {
            libc::syscall(libc::SYS_setresuid, uid, uid, uid);
            let program = [c"sleep".as_ptr(), c"1000".as_ptr(), std::ptr::null()];
            libc::execv(c"/bin/sleep".as_ptr(), program.as_ptr());
        }
        libc::_exit(1)
    }
}

/// Answers the kernel's requests about the file. Reports the request before a close, and answers it
/// when the other end of `may_answer` is dropped.
fn serve(mut device: File, asked: &Sender<()>, may_answer: &Receiver<()>) {
    let mut request = vec![0; 1 << 20];
    // An error means that the file system is unmounted.
    while let Ok(HEADER_BYTES..) = device.read(&mut request) {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four"));
        let number = request[8..16].to_vec();
        let (error, answer) = match word(4) {
            INIT => (0, init_answer(word(HEADER_BYTES + 8))),
            GETATTR => (0, attributes()),
            OPEN => (0, vec![0; 16]),
            RELEASE => (0, Vec::new()),
            FLUSH => {
                asked.send(()).expect("the test waits");
                let _ = may_answer.recv();
                (0, Vec::new())
            }
            FORGET | INTERRUPT => continue,
            _ => (-libc::ENOSYS, Vec::new()),
        };
        let mut reply = Vec::new();
        reply.extend((16 + answer.len() as u32).to_ne_bytes());
        reply.extend(error.to_ne_bytes());
        reply.extend(number);
        reply.extend(answer);
        let _ = device.write(&reply);
    }
}

/// `struct fuse_init_out`.
fn init_answer(readahead_bytes: u32) -> Vec<u8> {
    let mut answer = Vec::new();
    for word in [7, 31, readahead_bytes, 0, 12 << 16 | 16, 4096, 1] {
        answer.extend(u32::to_ne_bytes(word));
    }
    answer.resize(64, 0);
    answer
}

/// `struct fuse_attr_out` of an empty file.
fn attributes() -> Vec<u8> {
    /// `attr.mode`, behind the 16 bytes before `attr`.
    const MODE_AT: usize = 16 + 60;
    let mut answer = vec![0; 104];
    let mode = libc::S_IFREG | 0o644;
    answer[MODE_AT..][..4].copy_from_slice(&mode.to_ne_bytes());
    // `attr.nlink`.
    answer[MODE_AT + 4] = 1;
    answer
}

// include/uapi/linux/fuse.h.
const HEADER_BYTES: usize = 40;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;

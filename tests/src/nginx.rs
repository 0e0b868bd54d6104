//! nginx with two workers and files of known contents.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::load::Pattern;
use crate::process::Running;

/// An nginx that was started.
#[derive(Debug)]
pub struct Nginx {
    root: PathBuf,
    /// Its process.
    pub server: Running,
}

impl Nginx {
    /// Has `command`, which begins nginx, serve files of these sizes, named after them, at
    /// `address` and `port`. All that it writes is in `dir`. The caller waits until it is there.
    ///
    /// # Panics
    /// When `dir` is not writable.
    pub fn start(
        mut command: Command,
        dir: &Path,
        address: &str,
        port: u16,
        sizes: &[usize],
    ) -> Nginx {
        let root = dir.join("www");
        fs::create_dir(&root).expect("the scratch directory is writable");
        for size in sizes {
            let mut bytes = vec![0; *size];
            Pattern::new(*size as u64).fill(0, &mut bytes);
            fs::write(root.join(size.to_string()), bytes).expect("there is room");
        }
        let path = dir.join("nginx.conf");
        let config = configuration(dir, &root, address, port);
        fs::write(&path, config).expect("there is room");
        command.arg("-c").arg(path).arg("-p").arg(dir);
        Nginx {
            root,
            server: Running::start(command, "nginx", dir),
        }
    }

    /// The content of the file of this size.
    ///
    /// # Panics
    /// When there is none.
    pub fn body(&self, size: usize) -> Vec<u8> {
        fs::read(self.root.join(size.to_string())).expect("we wrote it")
    }
}

fn configuration(dir: &Path, root: &Path, address: &str, port: u16) -> String {
    let (dir, root) = (dir.display(), root.display());
    let places = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {dir}/{kind};"));
    format!(
        "user root; worker_processes 2; daemon off; pid {dir}/nginx.pid; error_log \
        {dir}/error.log;\n\
         events {{ worker_connections 512; }}\n\
         http {{ access_log off; sendfile on; keepalive_requests 100000; {}\n\
         server {{ listen {address}:{port}; root {root}; }} }}\n",
        places.join(" "),
    )
}

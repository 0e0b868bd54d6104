//! Descriptors: the numbers of sockets and epoll instances.

use std::collections::BTreeMap;
use std::ffi::c_int;

use crate::socket::Socket;

/// The lowest number of our descriptors: far above the numbers of packetdrill's own files.
pub(crate) const FIRST: c_int = 1 << 20;

#[derive(Debug)]
pub(crate) enum Descriptor {
    Socket(Box<Socket>),
    Epoll(Epoll),
}

/// An epoll instance.
#[derive(Debug, Default)]
pub(crate) struct Epoll {
    pub(crate) watches: BTreeMap<c_int, Watch>,
}

/// One member of an epoll instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    pub(crate) interest: u32,
    pub(crate) data: u64,
    /// The numbers of edges that were reported; `None` before the first report.
    pub(crate) edges_told: Option<(u64, u64)>,
    /// True for a one-shot member that has reported its event.
    pub(crate) is_spent: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    by_number: BTreeMap<c_int, Descriptor>,
    count: c_int,
}

impl Descriptors {
    pub(crate) fn add(&mut self, descriptor: Descriptor) -> c_int {
        let fd = FIRST + self.count;
        self.count += 1;
        self.by_number.insert(fd, descriptor);
        fd
    }

    pub(crate) fn remove(&mut self, fd: c_int) -> Result<Descriptor, c_int> {
        let removed = self.by_number.remove(&fd).ok_or(libc::EBADF)?;
        for descriptor in self.by_number.values_mut() {
            if let Descriptor::Epoll(epoll) = descriptor {
                epoll.watches.remove(&fd);
            }
        }
        Ok(removed)
    }

    pub(crate) fn get(&self, fd: c_int) -> Result<&Descriptor, c_int> {
        self.by_number.get(&fd).ok_or(libc::EBADF)
    }

    pub(crate) fn get_mut(&mut self, fd: c_int) -> Result<&mut Descriptor, c_int> {
        self.by_number.get_mut(&fd).ok_or(libc::EBADF)
    }

    pub(crate) fn socket(&self, fd: c_int) -> Result<&Socket, c_int> {
        match self.get(fd)? {
            Descriptor::Socket(socket) => Ok(socket),
            Descriptor::Epoll(_) => Err(libc::ENOTSOCK),
        }
    }

    pub(crate) fn socket_mut(&mut self, fd: c_int) -> Result<&mut Socket, c_int> {
        match self.get_mut(fd)? {
            Descriptor::Socket(socket) => Ok(socket),
            Descriptor::Epoll(_) => Err(libc::ENOTSOCK),
        }
    }

    pub(crate) fn epoll_mut(&mut self, fd: c_int) -> Result<&mut Epoll, c_int> {
        match self.get_mut(fd)? {
            Descriptor::Epoll(epoll) => Ok(epoll),
            Descriptor::Socket(_) => Err(libc::EINVAL),
        }
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.by_number
            .values()
            .filter_map(|descriptor| match descriptor {
                Descriptor::Socket(socket) => Some(&**socket),
                Descriptor::Epoll(_) => None,
            })
    }

    pub(crate) fn sockets_mut(&mut self) -> impl Iterator<Item = &mut Socket> {
        self.by_number
            .values_mut()
            .filter_map(|descriptor| match descriptor {
                Descriptor::Socket(socket) => Some(&mut **socket),
                Descriptor::Epoll(_) => None,
            })
    }
}

//! The BPF program that reads a socket's facts inside the kernel, and the layout of its argument.
//!
//! ```text
//!   Remember   current task ─► files ─► file of the descriptor ─► socket ─► sock
//!              the sock's cookie is the expected one? read its addresses
//!              keep cookie ─► sock; read
//!   Read       cookie ─► sock, as kept; has it that cookie? read
//!   Forget     keep it no more
//!   Count      current task ─► files ─► file of the descriptor ─► its references
//! ```
//!
//! The program follows pointers by `bpf_probe_read_kernel`, which fails for unmapped memory.
//! Addresses of the kernel stay in the map, which only the program can access. So a user who may
//! run the program cannot make it read at an arbitrary address.

use crate::registry::Address;
use toehold_channel::rendezvous::mapped;
use toehold_link::bpf::{Assembler, Btf, If, Instruction, Label, Register, Size};

/// The program's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Operation {
    Remember = 1,
    Read = 2,
    Forget = 3,
    Count = 4,
}

/// The program's success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Status {
    Done = 0,
    /// Not a socket, another socket, a socket that is not remembered, or memory that is not there.
    Failed = 1,
    /// There is no room to remember one more: of this socket only the addresses were read.
    Full = 2,
}

/// The program's argument and its answer: words at these places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context([u8; CONTEXT_BYTES]);

const CONTEXT_BYTES: usize = 136;
const OPERATION: i16 = 0;
const DESCRIPTOR: i16 = 4;
const COOKIE: i16 = 8;
const STATUS: i16 = 16;
const FAMILY: i16 = 20;
const PROTOCOL: i16 = 24;
const STATE: i16 = 28;
/// Not zero while a process may change the socket's sequence numbers (`TCP_REPAIR`).
const REPAIR: i16 = 32;
/// `snd_una` and `bytes_acked`, each read twice, then `rcv_nxt` and `bytes_received`, each read
/// twice.
const COUNTERS: i16 = 36;
const TX_HASH: i16 = 68;
const RX_HASH: i16 = 72;
/// The ports: the own one in the machine's byte order, the remote one in the network's.
const LOCAL_PORT: i16 = 76;
const REMOTE_PORT: i16 = 80;
/// The addresses, in the network's byte order.
const LOCAL_V4: i16 = 84;
const REMOTE_V4: i16 = 88;
const LOCAL_V6: i16 = 92;
const REMOTE_V6: i16 = 108;
/// The count of references of a file.
const REFERENCES: i16 = 128;

impl Context {
    pub(super) fn new(operation: Operation, descriptor: u32, cookie: u64) -> Context {
        let mut context = Context([0; CONTEXT_BYTES]);
        context.put(OPERATION, &(operation as u32).to_ne_bytes());
        context.put(DESCRIPTOR, &descriptor.to_ne_bytes());
        context.put(COOKIE, &cookie.to_ne_bytes());
        context.put(STATUS, &(Status::Failed as u32).to_ne_bytes());
        context
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    pub(super) fn status(&self) -> Status {
        match self.word(STATUS) {
            0 => Status::Done,
            2 => Status::Full,
            _ => Status::Failed,
        }
    }

    /// Whether it is an established TCP socket whose sequence numbers no process is changing.
    pub(super) fn is_plain(&self) -> bool {
        let is_internet = matches!(self.family(), libc::AF_INET | libc::AF_INET6);
        is_internet && self.is_established() && self.word(REPAIR) == 0
    }

    /// Its own address and its remote's, as getsockname(2) and getpeername(2) report them; `None`
    /// if it is not an established TCP socket. Only [`Operation::Remember`] reads them.
    pub(super) fn ends(&self) -> Option<[Address; 2]> {
        let ports = [
            self.word(LOCAL_PORT) as u16,
            u16::from_be(self.word(REMOTE_PORT) as u16),
        ];
        let ips = match self.family() {
            libc::AF_INET => [LOCAL_V4, REMOTE_V4].map(|at| mapped(*self.bytes(at))),
            libc::AF_INET6 => [LOCAL_V6, REMOTE_V6].map(|at| *self.bytes(at)),
            _ => return None,
        };
        let end = |side: usize| Address::Internet {
            ip: ips[side],
            port: ports[side],
        };
        self.is_established().then(|| [end(0), end(1)])
    }

    /// The count of references of a descriptor's file, as the kernel stores it.
    pub(super) fn references(&self) -> i64 {
        i64::from_ne_bytes(*self.bytes(REFERENCES))
    }

    fn family(&self) -> libc::c_int {
        self.word(FAMILY) as libc::c_int
    }

    fn is_established(&self) -> bool {
        self.word(PROTOCOL) == libc::IPPROTO_TCP as u32 && self.word(STATE) == TCP_ESTABLISHED
    }

    /// The first sequence numbers sent and received; `None` if counters changed during the read.
    pub(super) fn counters(&self) -> Option<(u32, u32)> {
        let first = |at: i16| {
            let [position, count, position_again, count_again] =
                [0, 4, 8, 12].map(|offset| self.word(at + offset));
            let is_steady = (position, count) == (position_again, count_again);
            is_steady.then(|| position.wrapping_sub(count))
        };
        Some((first(COUNTERS)?, first(COUNTERS + 16)?))
    }

    pub(super) fn tx_hash(&self) -> u32 {
        self.word(TX_HASH)
    }

    pub(super) fn rx_hash(&self) -> u32 {
        self.word(RX_HASH)
    }

    fn put(&mut self, at: i16, bytes: &[u8]) {
        self.0[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn word(&self, at: i16) -> u32 {
        u32::from_ne_bytes(*self.bytes(at))
    }

    fn bytes<const N: usize>(&self, at: i16) -> &[u8; N] {
        let bytes = self.0[at as usize..].first_chunk();
        bytes.expect("inside the context")
    }
}

/// The offsets of the fields that the program reads, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    task_files: u32,
    files_table: u32,
    table_size: u32,
    table_files: u32,
    file_private: u32,
    /// The count of references, and its value for a file with one.
    pub(super) references: (u32, i64),
    socket_file: u32,
    socket_sock: u32,
    family: u32,
    state: u32,
    cookie: u32,
    rx_hash: u32,
    protocol: u32,
    tx_hash: u32,
    snd_una: u32,
    bytes_acked: u32,
    rcv_nxt: u32,
    bytes_received: u32,
    /// The own side's and the remote's.
    ports: [u32; 2],
    v4: [u32; 2],
    /// `None` for a kernel without IPv6.
    v6: Option<[u32; 2]>,
    /// A byte and the bits in it.
    repair: (u32, u32),
}

impl Places {
    /// Finds them in the kernel's description.
    ///
    /// # Errors
    /// A sentence, if this kernel's structures differ from the known ones.
    pub(super) fn find(btf: &Btf) -> Result<Places, String> {
        let field = |structure: &str, path: &str| {
            let found = btf.field(structure, path);
            found.map_err(|error| error.to_string())
        };
        let of = |structure: &str, path: &str, bytes: u32| {
            let field = field(structure, path)?;
            match field.bytes == bytes && field.bits.is_none() {
                true => Ok(field.offset),
                false => Err(format!(
                    "{path} of this kernel's {structure} is of another size"
                )),
            }
        };
        // Linux 6.13 has changed the type.
        let references = of("file", "f_ref.refcnt.counter", 8).map(|at| (at, 0));
        let references = references.or_else(|_| of("file", "f_count.counter", 8).map(|at| (at, 1)));
        let repair = field("tcp_sock", "repair")?;
        let (first, width) = repair
            .bits
            .ok_or("repair of this kernel's tcp_sock is no bit field")?;
        Ok(Places {
            task_files: of("task_struct", "files", 8)?,
            files_table: of("files_struct", "fdt", 8)?,
            table_size: of("fdtable", "max_fds", 4)?,
            table_files: of("fdtable", "fd", 8)?,
            file_private: of("file", "private_data", 8)?,
            references: references?,
            socket_file: of("socket", "file", 8)?,
            socket_sock: of("socket", "sk", 8)?,
            family: of("sock", "__sk_common.skc_family", 2)?,
            state: of("sock", "__sk_common.skc_state", 1)?,
            cookie: of("sock", "__sk_common.skc_cookie", 8)?,
            rx_hash: of("sock", "__sk_common.skc_rxhash", 4)?,
            protocol: of("sock", "sk_protocol", 2)?,
            tx_hash: of("sock", "sk_txhash", 4)?,
            snd_una: of("tcp_sock", "snd_una", 4)?,
            bytes_acked: of("tcp_sock", "bytes_acked", 8)?,
            rcv_nxt: of("tcp_sock", "rcv_nxt", 4)?,
            bytes_received: of("tcp_sock", "bytes_received", 8)?,
            ports: [
                of("sock", "__sk_common.skc_num", 2)?,
                of("sock", "__sk_common.skc_dport", 2)?,
            ],
            v4: [
                of("sock", "__sk_common.skc_rcv_saddr", 4)?,
                of("sock", "__sk_common.skc_daddr", 4)?,
            ],
            v6: of("sock", "__sk_common.skc_v6_rcv_saddr", 16)
                .and_then(|own| Ok([own, of("sock", "__sk_common.skc_v6_daddr", 16)?]))
                .ok(),
            repair: (repair.offset, ((1 << width) - 1) << first),
        })
    }
}

/// The program. `sockets` is a map of eight bytes to eight bytes.
pub(super) fn assemble(places: &Places, sockets: i32) -> Vec<Instruction> {
    use Register::{R0, R1, R3, R4, R6, R7, R8, R9, R10};
    let mut a = Assembler::new();
    let failed = a.label();
    let mut p = Emitter { a, failed };
    let [recall, forget, count, found, read, full, end] = [(); 7].map(|()| p.a.label());
    p.a.copy(R6, R1);
    p.a.load(Size::Double, R1, R6, COOKIE);
    p.a.store(Size::Double, R10, KEY, R1);
    p.a.load(Size::Word, R1, R6, OPERATION);
    p.a.jump_if_word(R1, If::Equal, Operation::Read as u32, recall);
    p.a.jump_if_word(R1, If::Equal, Operation::Forget as u32, forget);

    // Remember and count: R8 becomes the file of our own descriptor.
    p.a.call(GET_CURRENT_TASK);
    p.a.copy(R8, R0);
    p.fetch(Size::Double, R8, R8, places.task_files);
    p.fetch(Size::Double, R8, R8, places.files_table);
    p.fetch(Size::Word, R7, R8, places.table_size);
    p.a.load(Size::Word, R9, R6, DESCRIPTOR);
    p.a.jump_if(R9, If::Greater, R7, failed);
    p.a.jump_if(R9, If::Equal, R7, failed);
    p.fetch(Size::Double, R8, R8, places.table_files);
    p.a.shift_left(R9, 3);
    p.a.add_register(R8, R9);
    p.fetch(Size::Double, R8, R8, 0);
    p.a.jump_if_null(R8, failed);
    p.a.load(Size::Word, R1, R6, OPERATION);
    p.a.jump_if_word(R1, If::Equal, Operation::Count as u32, count);

    // R7 becomes its sock.
    p.fetch(Size::Double, R9, R8, places.file_private);
    // Only a socket points back to its file.
    p.fetch(Size::Double, R7, R9, places.socket_file);
    let is_socket = p.a.label();
    p.a.jump_if(R7, If::Equal, R8, is_socket);
    p.a.jump(failed);
    p.a.place(is_socket);
    p.fetch(Size::Double, R7, R9, places.socket_sock);
    p.a.jump_if_null(R7, failed);
    p.is_expected(places.cookie);
    p.answer(Size::Half, places.family, FAMILY);
    p.answer(Size::Half, places.protocol, PROTOCOL);
    p.answer(Size::Byte, places.state, STATE);
    p.addresses(places);
    p.a.store(Size::Double, R10, VALUE, R7);
    p.a.load_map(R1, sockets);
    p.key();
    p.a.copy(R3, R10);
    p.a.add(R3, VALUE.into());
    p.a.set(R4, 0);
    p.a.call(MAP_UPDATE);
    p.a.jump_if_word(R0, If::NotEqual, 0, full);
    p.a.jump(read);

    p.a.place(recall);
    p.a.load_map(R1, sockets);
    p.key();
    p.a.call(MAP_LOOKUP);
    p.a.jump_if_null(R0, failed);
    p.a.load(Size::Double, R7, R0, 0);
    p.is_expected(places.cookie);
    p.a.jump(read);

    p.a.place(forget);
    p.a.load_map(R1, sockets);
    p.key();
    p.a.call(MAP_DELETE);
    p.a.jump(found);

    p.a.place(count);
    p.fetch(Size::Double, R1, R8, places.references.0);
    p.a.store(Size::Double, R6, REFERENCES, R1);
    p.a.jump(found);

    p.a.place(read);
    p.answer(Size::Half, places.family, FAMILY);
    p.answer(Size::Half, places.protocol, PROTOCOL);
    p.answer(Size::Byte, places.state, STATE);
    p.fetch(Size::Byte, R1, R7, places.repair.0);
    p.a.and(R1, places.repair.1.cast_signed());
    p.a.store(Size::Word, R6, REPAIR, R1);
    // The kernel changes the count first and the position second. Two reads in the opposite order
    // show a change in between. Only the lower halves of the counts are read.
    let directions = [
        (places.snd_una, places.bytes_acked),
        (places.rcv_nxt, places.bytes_received),
    ];
    let mut at = COUNTERS;
    for (position, count) in directions {
        for place in [position, count, position, count] {
            p.answer(Size::Word, place, at);
            at += 4;
        }
    }
    p.answer(Size::Word, places.tx_hash, TX_HASH);
    p.answer(Size::Word, places.rx_hash, RX_HASH);
    p.a.place(found);
    p.a.store_number(Size::Word, R6, STATUS, Status::Done as i32);
    p.a.jump(end);
    p.a.place(full);
    p.a.store_number(Size::Word, R6, STATUS, Status::Full as i32);
    p.a.jump(end);
    p.a.place(failed);
    p.a.store_number(Size::Word, R6, STATUS, Status::Failed as i32);
    p.a.place(end);
    p.a.set(R0, 0);
    p.a.exit();
    p.a.finish()
}

/// An assembler, and the place where the program gives up. R6 is the context, R7 the sock.
struct Emitter {
    a: Assembler,
    failed: Label,
}

impl Emitter {
    /// `to = *(base + offset)`, of the kernel's memory.
    fn fetch(&mut self, size: Size, to: Register, base: Register, offset: u32) {
        use Register::{R0, R1, R2, R3, R10};
        let bytes = match size {
            Size::Byte => 1,
            Size::Half => 2,
            Size::Word => 4,
            Size::Double => 8,
        };
        self.a.copy(R3, base);
        self.a.add(R3, offset.cast_signed());
        self.a.copy(R1, R10);
        self.a.add(R1, READ.into());
        self.a.set(R2, bytes);
        self.a.call(PROBE_READ_KERNEL);
        self.a.jump_if_word(R0, If::NotEqual, 0, self.failed);
        self.a.load(size, to, R10, READ);
    }

    /// Puts a field of the sock into the answer.
    fn answer(&mut self, size: Size, field: u32, at: i16) {
        self.fetch(size, Register::R1, Register::R7, field);
        self.a.store(Size::Word, Register::R6, at, Register::R1);
    }

    /// Puts both addresses of the sock into the answer.
    fn addresses(&mut self, places: &Places) {
        let [local_port, remote_port] = places.ports;
        self.answer(Size::Half, local_port, LOCAL_PORT);
        self.answer(Size::Half, remote_port, REMOTE_PORT);
        let [local, remote] = places.v4;
        self.answer(Size::Word, local, LOCAL_V4);
        self.answer(Size::Word, remote, REMOTE_V4);
        let Some([local, remote]) = places.v6 else {
            return;
        };
        for (field, at) in [(local, LOCAL_V6), (remote, REMOTE_V6)] {
            for word in 0..4u8 {
                let place = field + 4 * u32::from(word);
                self.answer(Size::Word, place, at + 4 * i16::from(word));
            }
        }
    }

    /// Goes on only if the sock has the requested cookie.
    fn is_expected(&mut self, cookie: u32) {
        use Register::{R1, R2, R7, R10};
        self.fetch(Size::Double, R1, R7, cookie);
        self.a.load(Size::Double, R2, R10, KEY);
        let same = self.a.label();
        self.a.jump_if(R1, If::Equal, R2, same);
        self.a.jump(self.failed);
        self.a.place(same);
    }

    /// The second argument is the key.
    fn key(&mut self) {
        self.a.copy(Register::R2, Register::R10);
        self.a.add(Register::R2, KEY.into());
    }
}

/// Places on the stack.
const READ: i16 = -8;
const KEY: i16 = -16;
const VALUE: i16 = -24;
/// `enum bpf_func_id`.
const MAP_LOOKUP: i32 = 1;
const MAP_UPDATE: i32 = 2;
const MAP_DELETE: i32 = 3;
const GET_CURRENT_TASK: i32 = 35;
const PROBE_READ_KERNEL: i32 = 113;
/// include/net/tcp_states.h.
const TCP_ESTABLISHED: u32 = 1;

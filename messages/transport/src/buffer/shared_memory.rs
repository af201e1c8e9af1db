//! Memory that tasks of one host share. A task takes its large buffers from its arena. Other tasks of the
//! same user can map the arena, and read the buffers that the task lends to them.
//!
//! Wanted properties: (A) a range of an arena belongs to one block at a time; (B) no range is read or written
//! outside its mapping, whatever another task does with the file.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pushpull_messages::tensor::ALIGNMENT;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::line::Line;
use super::ranges::Ranges;

/// The granularity of an arena in bytes: a page of the largest size in use.
const PAGE_BYTES: usize = 64 << 10;
/// The size of a huge page in bytes. With small pages, an update of large values takes half as long again.
const HUGE_BYTES: usize = 2 << 20;
/// The largest size of an arena in bytes. It is address space; memory is used only for blocks.
const ARENA_BYTES_MAX: usize = 1 << 40;

/// A range of this process's address space that shows a file in memory. It begins at a multiple of
/// [`HUGE_BYTES`].
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// The range that was reserved for the mapping, which is larger because it may begin anywhere.
    reserved: (NonNull<u8>, usize),
}

// SAFETY: a mapping is an address range that stays valid until it is dropped, on every thread. What may be
// read and written through it is up to `Arena` and `Region`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: BorrowedFd<'_>, bytes: usize, access: ProtFlags) -> io::Result<Self> {
        let all = bytes.checked_add(HUGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses an address range that nothing else uses.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), all, ProtFlags::empty(), flags)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let skipped = base.as_ptr().align_offset(HUGE_BYTES);
        // SAFETY: at most `HUGE_BYTES` bytes are skipped.
        let start = unsafe { base.add(skipped) };
        // From here on, the range is given back if something fails.
        let mapping = Self { start, bytes, reserved: (base, all) };
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the range has just been reserved, and nothing uses it yet.
        unsafe { rustix::mm::mmap(start.as_ptr().cast(), bytes, access, flags, file, 0)? };
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`. Whatever borrows from it also borrows this value.
        let _ = unsafe { rustix::mm::munmap(self.reserved.0.as_ptr().cast(), self.reserved.1) };
    }
}

/// The memory from which a task takes the buffers that it lends to other tasks.
pub(crate) struct Arena {
    mapping: Mapping,
    /// The file through which other processes can map the arena, but not for writing.
    file: OwnedFd,
    ranges: Mutex<Ranges>,
    /// Whether the system may offer huge pages.
    huge: AtomicBool,
}

impl Arena {
    /// Returns an arena without blocks. It can grow to the size of the host's memory.
    ///
    /// # Errors
    /// Returns an error if the system does not offer such memory.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let system = rustix::system::sysinfo();
        let memory = (system.totalram as usize).saturating_mul(system.mem_unit as usize);
        let bytes = memory.next_multiple_of(1 << 30).min(ARENA_BYTES_MAX);
        let file = rustix::fs::memfd_create("pushpull", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        // (B): a file that cannot shrink has every page of a mapping.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::new(file.as_fd(), bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let (ranges, huge) = (Mutex::new(Ranges::new(bytes)), AtomicBool::new(true));
        Ok(Arc::new(Self { mapping, file, ranges, huge }))
    }

    /// Returns the file through which other processes can map the arena, but not for writing.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Takes a block of `lines` cache lines, which are 0. Returns `None` if the arena is full.
    pub(super) fn take(self: &Arc<Self>, lines: usize) -> Option<Block> {
        let bytes = block_bytes(lines)?;
        let alignment = if bytes < HUGE_BYTES { PAGE_BYTES } else { HUGE_BYTES };
        let start = self.ranges.lock().take(bytes, alignment)?;
        let mut block = Block { arena: Arc::clone(self), start, lines };
        self.use_huge_pages(&mut block);
        Some(block)
    }

    /// Lets a new block use huge pages where it has whole ones.
    fn use_huge_pages(&self, block: &mut Block) {
        let bytes = block.bytes() / HUGE_BYTES * HUGE_BYTES;
        if bytes == 0 || !self.huge.load(Ordering::Relaxed) {
            return;
        }
        // The system makes a huge page only of a range that has a page.
        for line in block.iter_mut().step_by(HUGE_BYTES / ALIGNMENT) {
            // SAFETY: the line belongs to the block. The write is volatile because it changes no value.
            unsafe { std::ptr::write_volatile(line, bytemuck::Zeroable::zeroed()) };
        }
        // SAFETY: the range belongs to the block. The call changes its pages, but not what they contain.
        let result = unsafe { libc::madvise(block.pointer().as_ptr().cast(), bytes, libc::MADV_COLLAPSE) };
        if result != 0 {
            // Most likely memory is fragmented, or the system knows no such pages. Another try takes time.
            self.huge.store(false, Ordering::Relaxed);
            tracing::debug!(error = %io::Error::last_os_error(), "shared memory has small pages");
        }
    }
}

/// Returns the number of bytes of a block of `lines` lines: whole pages, and whole huge pages if that leaves
/// little unused.
fn block_bytes(lines: usize) -> Option<usize> {
    let bytes = lines.checked_mul(ALIGNMENT)?.max(1);
    let unit = if bytes % HUGE_BYTES >= HUGE_BYTES / 4 * 3 { HUGE_BYTES } else { PAGE_BYTES };
    bytes.checked_next_multiple_of(unit)
}

/// A part of an arena, which belongs to the owner of this value alone.
pub(super) struct Block {
    arena: Arc<Arena>,
    /// Where the block begins in its arena, in bytes.
    start: usize,
    lines: usize,
}

impl Block {
    /// Returns the arena, and where the block begins in it, in bytes.
    pub(super) fn place(&self) -> (&Arc<Arena>, usize) {
        (&self.arena, self.start)
    }

    fn pointer(&self) -> NonNull<Line> {
        // SAFETY: the block is within its mapping.
        unsafe { self.arena.mapping.start.add(self.start) }.cast()
    }

    fn bytes(&self) -> usize {
        block_bytes(self.lines).expect("a block is in memory")
    }
}

impl Deref for Block {
    type Target = [Line];

    fn deref(&self) -> &[Line] {
        // SAFETY: (A): the range belongs to this block, so nobody writes to it during the borrow. It is
        // mapped, a block begins on a page, and every pattern of bits is a line.
        unsafe { std::slice::from_raw_parts(self.pointer().as_ptr(), self.lines) }
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [Line] {
        // SAFETY: as for reading. Another process may read the range only while it is lent, and then nobody
        // has this value for writing.
        unsafe { std::slice::from_raw_parts_mut(self.pointer().as_ptr(), self.lines) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let bytes = self.bytes();
        // SAFETY: the range belongs to this block alone, which ends here.
        let freed =
            unsafe { rustix::mm::madvise(self.pointer().as_ptr().cast(), bytes, Advice::LinuxRemove) };
        if freed.is_err() {
            // The next block must find zeros.
            (**self).fill(bytemuck::Zeroable::zeroed());
        }
        self.arena.ranges.lock().put(self.start, bytes);
    }
}

/// The arena of another task of this host, for reading.
pub(crate) struct Region {
    mapping: Mapping,
}

/// The arenas that this process has mapped, by the device and the number of their files. Many connections may
/// lead to one task, and the address space is bounded.
static REGIONS: Mutex<BTreeMap<(u64, u64), Weak<Region>>> = Mutex::new(BTreeMap::new());

impl Region {
    /// Maps the arena behind a file that another task has sent.
    ///
    /// # Errors
    /// Returns an error if the file may shrink, or cannot be mapped.
    pub(crate) fn map(file: &OwnedFd) -> io::Result<Arc<Self>> {
        let seals = rustix::fs::fcntl_get_seals(file)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::other("the other task's memory may shrink"));
        }
        let about = rustix::fs::fstat(file)?;
        let mut regions = REGIONS.lock();
        let key = (about.st_dev, about.st_ino);
        if let Some(region) = regions.get(&key).and_then(Weak::upgrade) {
            return Ok(region);
        }
        regions.retain(|_, region| region.strong_count() > 0);
        let bytes = usize::try_from(about.st_size).ok().filter(|bytes| (1..=ARENA_BYTES_MAX).contains(bytes));
        let bytes =
            bytes.ok_or_else(|| io::Error::other("the other task's memory has an impossible size"))?;
        // (B): the size was read after the seal, so it stays.
        let mapping = Mapping::new(file.as_fd(), bytes, ProtFlags::READ)?;
        let region = Arc::new(Self { mapping });
        regions.insert(key, Arc::downgrade(&region));
        Ok(region)
    }

    /// Returns whether the region has a range that begins on a cache line.
    pub(crate) fn has(&self, start: u64, bytes: u64) -> bool {
        let end = start.checked_add(bytes);
        start.is_multiple_of(ALIGNMENT as u64) && end.is_some_and(|end| end <= self.mapping.bytes as u64)
    }

    /// Returns the bytes of a range. Its owner must have lent it to this task, and so does not write to it. A
    /// process of the same user that broke this rule could as well change this process's memory.
    ///
    /// # Panics
    /// If the region does not have the range.
    pub(super) fn bytes(&self, start: usize, bytes: usize) -> &[u8] {
        assert!(start.checked_add(bytes).is_some_and(|end| end <= self.mapping.bytes));
        // SAFETY: (B): the range is mapped, and stays readable because the file cannot shrink.
        unsafe { std::slice::from_raw_parts(self.mapping.start.add(start).as_ptr(), bytes) }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} bytes)", self.mapping.bytes)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.mapping.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_mapping_shows_what_a_block_has() {
        let arena = Arena::new().unwrap();
        let (mut one, two) = (arena.take(3).unwrap(), arena.take(1).unwrap());
        bytemuck::cast_slice_mut::<_, u8>(&mut one)[..3].copy_from_slice(b"abc");
        assert!(two.iter().all(|line| bytemuck::bytes_of(line).iter().all(|&byte| byte == 0)));
        let file = arena.file().try_clone_to_owned().unwrap();
        let region = Region::map(&file).unwrap();
        assert_eq!(region.bytes(one.start, 3), b"abc");
        assert!(Arc::ptr_eq(&region, &Region::map(&file).unwrap()), "it is mapped once");
        assert!(Mapping::new(arena.file(), PAGE_BYTES, ProtFlags::WRITE).is_err(), "nobody else writes");
        let start = one.start;
        drop(one);
        let again = arena.take(1).unwrap();
        assert_eq!(again.start, start, "the range is free again");
        assert_eq!(region.bytes(start, 3), [0; 3], "and has been emptied");
        assert!(
            region.has(64, 64) && !region.has(63, 1) && !region.has(0, u64::MAX) && !region.has(1 << 60, 1)
        );
    }

    #[test]
    fn a_file_that_may_shrink_is_not_mapped() {
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, PAGE_BYTES as u64).unwrap();
        assert!(Region::map(&file).unwrap_err().to_string().contains("may shrink"));
    }

    #[test]
    fn an_arena_that_is_full_has_no_block() {
        let arena = Arena::new().unwrap();
        assert!(arena.take(usize::MAX).is_none());
        assert!(arena.take(arena.mapping.bytes / ALIGNMENT + 1).is_none());
    }
}

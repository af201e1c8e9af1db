//! The files of a data set that were found on this host or in a store, with their sizes. This module must
//! not depend on what is in the files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pushpull_messages::input::{DatasetSpec, FilesDigest};

use crate::InputError;
use crate::object::{self, Address};
use crate::unpacked::size_either;

/// The sizes of files, in bytes, by their paths or addresses.
pub(crate) type Sizes = BTreeMap<PathBuf, u64>;

/// The files of a data set, all of which exist.
#[derive(Clone, Debug, Default)]
pub(crate) struct FoundFiles {
    /// Each file with its size; `None` for a pipe.
    files: Vec<(PathBuf, Option<u64>)>,
}

impl FoundFiles {
    /// Finds every file of `spec`, whose file names must not be patterns. `listed` has the sizes of the
    /// objects that a listing has returned, so no further request is sent for these.
    ///
    /// # Errors
    /// [`InputError::Missing`] if a file does not exist; [`InputError::Read`] if a store does not reply.
    pub(crate) fn find(spec: &DatasetSpec, listed: &Sizes) -> Result<Self, InputError> {
        let files = spec.files();
        let unknown = |file: &&Path| !listed.contains_key(*file);
        let addresses: Vec<(&Path, Address)> = files
            .iter()
            .copied()
            .filter(unknown)
            .filter_map(|file| Some((file, Address::of(file)?)))
            .collect();
        let sizes = object::sizes(addresses.iter().map(|(_, address)| address.clone()));
        let asked: BTreeMap<&Path, u64> =
            addresses.iter().zip(sizes).filter_map(|((file, _), size)| Some((*file, size.ok()?))).collect();
        let size = |file: &Path| match listed.get(file).or_else(|| asked.get(file)) {
            Some(&size) => Ok((file.to_path_buf(), Some(size))),
            // The size of a local file is unknown so far. An object that was not found may exist under a
            // name with another ending, such as `.gz`. After any other failure, the request is repeated, and
            // its error is returned.
            None => Ok((file.to_path_buf(), size_either(file)?)),
        };
        Ok(Self { files: files.into_iter().map(size).collect::<Result<_, InputError>>()? })
    }

    /// Returns the number of bytes of all files. A pipe counts as 0 bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().filter_map(|(_, size)| *size).fold(0, u64::saturating_add)
    }

    /// Returns a short description of the files; `None` if there are no files.
    pub(crate) fn digest(&self) -> Option<FilesDigest> {
        let mut digest = FilesDigest::default();
        self.files.iter().for_each(|(file, size)| digest.add(file, size.unwrap_or(0)));
        (digest.files > 0).then_some(digest)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    fn cifar(files: &[PathBuf]) -> DatasetSpec {
        DatasetSpec::Cifar10 { files: files.to_vec() }
    }

    #[test]
    fn sizes_of_files_and_objects_are_found() {
        let folder = TempDir::new().unwrap();
        for (name, bytes) in [("a", 3), ("b.gz", 5)] {
            fs::write(folder.path().join(name), vec![0; bytes]).unwrap();
        }
        let objects = PathBuf::from(format!("file://{}", folder.path().display()));
        for place in [folder.path(), &objects] {
            let spec = cifar(&[place.join("a"), place.join("b")]);
            let found = FoundFiles::find(&spec, &Sizes::new()).unwrap();
            assert_eq!(found.bytes(), 8, "{place:?}");
            let digest = found.digest().unwrap();
            assert_eq!((digest.files, digest.bytes), (2, 8));
            let missing = cifar(&[place.join("a"), place.join("c")]);
            let error = FoundFiles::find(&missing, &Sizes::new()).unwrap_err();
            assert!(matches!(error, InputError::Missing { .. }), "{error}");
        }
        assert_eq!(FoundFiles::default().digest(), None);
    }

    #[test]
    fn a_size_that_was_listed_is_not_asked_again() {
        let gone = PathBuf::from("file:///no/such/folder/a");
        let sizes = Sizes::from([(gone.clone(), 7)]);
        assert_eq!(FoundFiles::find(&cifar(std::slice::from_ref(&gone)), &sizes).unwrap().bytes(), 7);
        assert!(FoundFiles::find(&cifar(&[gone]), &Sizes::new()).is_err());
    }

    #[test]
    fn a_store_that_fails_is_not_a_small_set() {
        // The name of an object is not valid, so the store refuses to look for it.
        let error = FoundFiles::find(&cifar(&["ftp://host/a".into()]), &Sizes::new()).unwrap_err();
        assert!(matches!(error, InputError::Read { .. }), "{error}");
    }
}

//! What a card needs of NVIDIA's library for products, cuBLASLt, as values that release themselves. The
//! context must be bound to the thread. The library keeps matrices column by column, so what is a matrix here
//! is its transpose there: instead of c = a · b, it computes cᵀ = bᵀ · aᵀ.

use std::ffi::c_void;
use std::sync::OnceLock;

use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t as Field;
use cudarc::cublaslt::{result, sys};

use super::cuda::{Asked, Buffer, Queue};
use crate::multiplication::{Epilogue, Multiplication, Precision};

/// An error of the library.
pub(super) type Fault = result::CublasError;

/// The memory that a product may use beside its matrices. NVIDIA recommends this size for Hopper.
const WORKSPACE_BYTES: usize = 32 << 20;
/// All matrices begin at multiples of this number of bytes.
const ALIGNMENT_BYTES: u32 = 16;

/// The oldest version that has all that is used here, that of CUDA 12.
const VERSION_MIN: usize = 120_000;

/// Returns whether the library is there, and is new enough. Nothing else here may be called before, because
/// `cudarc` panics if it is not there.
pub(super) fn is_present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    *PRESENT.get_or_init(|| {
        // SAFETY: to load a library runs the code with which it begins. The library that the system has under
        // this name is trusted, as all libraries of the system are.
        #[expect(unsafe_code)]
        unsafe {
            sys::is_culib_present() && sys::cublasLtGetVersion() >= VERSION_MIN
        }
    })
}

/// A pointer of the library to something that it keeps, with the function that frees it.
#[derive(Debug)]
struct Handle<T> {
    pointer: *mut T,
    free: unsafe fn(*mut T) -> Result<(), Fault>,
}

// SAFETY: what the library keeps may be used by each thread to which the context is bound, and a handle has
// one owner.
#[expect(unsafe_code)]
unsafe impl<T> Send for Handle<T> {}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: the library has returned the pointer, and nothing uses it any more.
        #[expect(unsafe_code)]
        let _ = unsafe { (self.free)(self.pointer) };
    }
}

/// The library, for products on one stream.
#[derive(Debug)]
pub(super) struct Library {
    handle: Handle<sys::cublasLtContext>,
    workspace: Buffer,
}

/// How the library computes products of given sizes.
#[derive(Debug)]
pub(super) struct Plan {
    product: Handle<sys::cublasLtMatmulDescOpaque_t>,
    /// The layouts of b, of a, and of the result.
    layouts: [Handle<sys::cublasLtMatrixLayoutOpaque_t>; 3],
    /// Whether a bias is added.
    has_bias: bool,
    /// Whether the card has the number by which sums are multiplied.
    is_scaled: bool,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Library {
    /// Starts the library.
    pub fn start(workspace: impl FnOnce(u64) -> Asked<Buffer>) -> Result<Self, StartFault> {
        let pointer = result::create_handle().map_err(StartFault::Library)?;
        let handle = Handle { pointer, free: result::destroy_handle };
        Ok(Self { handle, workspace: workspace(WORKSPACE_BYTES as u64).map_err(StartFault::Memory)? })
    }

    /// Chooses how to compute products. The choice depends on the card, the library and the sizes alone.
    pub fn plan(&self, multiplication: &Multiplication) -> Result<Plan, Fault> {
        let &Multiplication { batch, sizes, transposed: [transpose_a, transpose_b], precision, epilogue } =
            multiplication;
        let [rows, terms, columns] = sizes.map(|size| size as u64);
        let factors = match precision {
            Precision::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
            Precision::Fp16 => sys::cudaDataType_t::CUDA_R_16F,
            Precision::F32 | Precision::Tf32 => sys::cudaDataType_t::CUDA_R_32F,
        };
        let line = |is_transposed: bool, [lines, length]: [u64; 2]| match is_transposed {
            true => [lines, length],
            false => [length, lines],
        };
        let layouts = [
            layout(factors, line(transpose_b, [terms, columns]), batch)?,
            layout(factors, line(transpose_a, [rows, terms]), batch)?,
            layout(sys::cudaDataType_t::CUDA_R_32F, [columns, rows], batch)?,
        ];
        let product = product(precision, [transpose_b, transpose_a], epilogue)?;
        let preference = preference()?;
        let [b, a, c] = [&layouts[0], &layouts[1], &layouts[2]].map(|layout| layout.pointer);
        // SAFETY: all pointers are from handles that exist.
        #[expect(unsafe_code)]
        let found = unsafe {
            let (own, product) = (self.handle.pointer, product.pointer);
            result::get_matmul_algo_heuristic(own, product, b, a, c, c, preference.pointer)
        }?;
        let (has_bias, is_scaled) = (epilogue != Epilogue::Bare, precision == Precision::Fp16);
        Ok(Plan { product, layouts, has_bias, is_scaled, algorithm: found.algo })
    }

    /// Begins to compute the products of the matrices at these addresses: the results, a, b, the bias if the
    /// plan has one, and the number by which sums are multiplied, with a 0 behind it, if the plan is scaled.
    /// They must have the sizes of the plan, and products must be on one stream.
    pub fn multiply(&self, plan: &Plan, queue: &Queue, addresses: &[u64]) -> Result<(), Fault> {
        let [to, a, b] = [addresses[0], addresses[1], addresses[2]];
        if plan.has_bias {
            set_product(&plan.product, Field::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &addresses[3])?;
        }
        let (one, zero) = (1.0_f32, 0.0_f32);
        let pointer = |address: u64| address as *const c_void;
        let [alpha, beta] = match plan.is_scaled {
            true => {
                let alpha = addresses[3 + usize::from(plan.has_bias)];
                [alpha, alpha + 4].map(pointer)
            }
            false => [(&raw const one).cast(), (&raw const zero).cast()],
        };
        let [of_b, of_a, of_c] = [0, 1, 2].map(|at| plan.layouts[at].pointer);
        // SAFETY: all pointers are from handles that exist. The ledger has found that the matrices exist, and
        // operations declare what a product touches. The stream carries out one product at a time, so the
        // workspace is used once at a time.
        #[expect(unsafe_code)]
        unsafe {
            result::matmul(
                self.handle.pointer,
                plan.product.pointer,
                alpha,
                beta,
                pointer(b),
                of_b,
                pointer(a),
                of_a,
                pointer(to),
                of_c,
                pointer(to).cast_mut(),
                of_c,
                &raw const plan.algorithm,
                pointer(self.workspace.address).cast_mut(),
                WORKSPACE_BYTES,
                queue.pointer().cast(),
            )
        }
    }
}

/// Why the library could not be started.
#[derive(Debug)]
pub(super) enum StartFault {
    Library(Fault),
    /// There is no memory for it.
    Memory(super::cuda::Fault),
}

/// Sets a field of a product.
fn set_product<T>(
    product: &Handle<sys::cublasLtMatmulDescOpaque_t>,
    field: Field,
    value: &T,
) -> Result<(), Fault> {
    // SAFETY: the handle exists, and the callers give each field a value of its type.
    #[expect(unsafe_code)]
    unsafe {
        result::set_matmul_desc_attribute(
            product.pointer,
            field,
            std::ptr::from_ref(value).cast(),
            size_of::<T>(),
        )
    }
}

/// Returns the description of a product whose first factor, for the library, is b.
fn product(
    precision: Precision,
    transposed: [bool; 2],
    epilogue: Epilogue,
) -> Result<Handle<sys::cublasLtMatmulDescOpaque_t>, Fault> {
    use sys::cublasComputeType_t::{CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32};
    use sys::cublasLtEpilogue_t as End;
    let compute = match precision {
        Precision::F32 | Precision::Bf16 | Precision::Fp16 => CUBLAS_COMPUTE_32F,
        Precision::Tf32 => CUBLAS_COMPUTE_32F_FAST_TF32,
    };
    let pointer = result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F)?;
    let own = Handle { pointer, free: result::destroy_matmul_desc };
    // CUBLAS_OP_T is 1, and CUBLAS_OP_N is 0.
    let [first, second] = transposed.map(i32::from);
    set_product(&own, Field::CUBLASLT_MATMUL_DESC_TRANSA, &first)?;
    set_product(&own, Field::CUBLASLT_MATMUL_DESC_TRANSB, &second)?;
    if precision == Precision::Fp16 {
        let mode = sys::cublasLtPointerMode_t::CUBLASLT_POINTER_MODE_DEVICE;
        set_product(&own, Field::CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode)?;
    }
    let end = match epilogue {
        Epilogue::Bare => End::CUBLASLT_EPILOGUE_DEFAULT,
        Epilogue::Bias => End::CUBLASLT_EPILOGUE_BIAS,
        Epilogue::BiasRelu => End::CUBLASLT_EPILOGUE_RELU_BIAS,
    };
    set_product(&own, Field::CUBLASLT_MATMUL_DESC_EPILOGUE, &end)?;
    if epilogue != Epilogue::Bare {
        let kind = sys::cudaDataType_t::CUDA_R_32F;
        set_product(&own, Field::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &kind)?;
    }
    Ok(own)
}

/// Returns the layout of `batch` matrices of columns, with these numbers of rows and columns.
fn layout(
    numbers: sys::cudaDataType_t,
    [rows, columns]: [u64; 2],
    batch: usize,
) -> Result<Handle<sys::cublasLtMatrixLayoutOpaque_t>, Fault> {
    use sys::cublasLtMatrixLayoutAttribute_t::{
        CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT as COUNT, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET as DISTANCE,
    };
    let pointer = result::create_matrix_layout(numbers, rows, columns, rows.cast_signed())?;
    let own = Handle { pointer, free: result::destroy_matrix_layout };
    let (count, distance) = (i32::try_from(batch).unwrap_or(i32::MAX), (rows * columns).cast_signed());
    // SAFETY: the handle exists, and the values have the types of their fields.
    #[expect(unsafe_code)]
    unsafe {
        let set = result::set_matrix_layout_attribute;
        set(own.pointer, COUNT, (&raw const count).cast(), size_of_val(&count))?;
        set(own.pointer, DISTANCE, (&raw const distance).cast(), size_of_val(&distance))?;
    }
    Ok(own)
}

/// Returns what the library may use.
fn preference() -> Result<Handle<sys::cublasLtMatmulPreferenceOpaque_t>, Fault> {
    use sys::cublasLtMatmulPreferenceAttributes_t as Field;
    let own = Handle { pointer: result::create_matmul_pref()?, free: result::destroy_matmul_pref };
    let (bytes, alignment) = (WORKSPACE_BYTES, ALIGNMENT_BYTES);
    // SAFETY: the handle exists, and the values have the types of their fields.
    #[expect(unsafe_code)]
    unsafe {
        let set = result::set_matmul_pref_attribute;
        let field = Field::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        set(own.pointer, field, (&raw const bytes).cast(), size_of_val(&bytes))?;
        for field in [
            Field::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Field::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Field::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Field::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            set(own.pointer, field, (&raw const alignment).cast(), size_of_val(&alignment))?;
        }
    }
    Ok(own)
}
